import pytest
import torch

from dllm_decode.canvas import Block, Canvas

MASK, EOS = 9, 8


def blank(prompts: list[list[int]], gen_length: int = 4, **options: object) -> Canvas:
    return Canvas.blank(prompts, gen_length, mask_id=MASK, eos_ids=(EOS,), **options)  # type: ignore[arg-type]


def test_prompts_are_left_padded_so_that_all_answers_start_in_one_column() -> None:
    canvas = blank([[1, 2, 3], [4]])
    assert canvas.start == 3
    assert canvas.tokens.tolist() == [[1, 2, 3, *[MASK] * 4], [EOS, EOS, 4, *[MASK] * 4]]
    assert canvas.pads.tolist() == [0, 2]
    assert canvas.padded


def test_a_block_causal_row_starts_its_answer_with_the_prompt_tail() -> None:
    canvas = blank([[1, 2, 3, 4, 5], [6, 7, 1, 2]], gen_length=4, align=4)
    assert canvas.start == 4
    assert canvas.lead.tolist() == [1, 0]
    assert canvas.ends.tolist() == [8, 4]
    assert canvas.masked.tolist() == [
        [False, True, True, True, True, True, True, True],
        [True, True, True, True, False, False, False, False],
    ]
    assert canvas.region[0, 0] == 5


def test_a_batch_mate_does_not_change_the_columns_of_a_block_causal_row() -> None:
    alone = blank([[1, 2, 3, 4, 5]], gen_length=4, align=4)
    together = blank([[1, 2, 3, 4, 5], [1] * 11], gen_length=4, align=4)
    assert (together.pads[0] + 0) % 4 == 0
    assert torch.equal(together.region[0, : alone.region_length], alone.region[0])


def test_the_last_block_may_be_short() -> None:
    assert list(blank([[1]], gen_length=5).blocks(2)) == [Block(0, 2), Block(2, 4), Block(4, 5)]


def test_template_tokens_are_fixed_and_the_rest_is_masked() -> None:
    canvas = blank([[1], [1]], templates=[[MASK, 5], []])
    assert canvas.region.tolist() == [[MASK, 5, MASK, MASK], [MASK] * 4]
    assert canvas.fixed.tolist() == [[False, True, False, False], [False] * 4]
    assert canvas.committed.tolist() == [1, 0]


def test_a_row_stops_at_eos_only_when_nothing_before_it_is_masked() -> None:
    canvas = blank([[EOS, 1]] * 3)
    tokens = torch.tensor([[1, EOS, MASK, MASK], [MASK, EOS, MASK, MASK], [1, 2, MASK, MASK]])
    stopped = canvas.write(0, torch.ones(3, 4, dtype=torch.bool), tokens).stop_at_eos()
    assert stopped.running.tolist() == [False, True, True]
    assert stopped.region.tolist() == [
        [1, EOS, EOS, EOS],
        [MASK, EOS, MASK, MASK],
        [1, 2, MASK, MASK],
    ]


def test_a_fixed_token_behind_the_end_stays() -> None:
    canvas = blank([[1]], templates=[[EOS, MASK, 5, MASK]]).stop_at_eos()
    assert canvas.region.tolist() == [[EOS, EOS, 5, EOS]]


def test_writing_leaves_the_old_canvas_as_it_was() -> None:
    canvas = blank([[1]])
    canvas.write(1, torch.tensor([[True, False]]), torch.tensor([[5, 6]]))
    assert canvas.region.tolist() == [[MASK] * 4]


def test_rows_that_were_taken_can_be_put_back() -> None:
    canvas = blank([[1], [2], [3]])
    part = canvas.take(torch.tensor([2, 0]))
    part = part.write(0, torch.ones(2, 1, dtype=torch.bool), torch.tensor([[7], [6]]))
    assert canvas.put(part).region[:, 0].tolist() == [6, MASK, 7]


@pytest.mark.parametrize(
    ("prompts", "gen_length", "templates", "sentence"),
    [
        ([], 4, (), "at least one prompt, got none"),
        ([[1], []], 4, (), "at least one token, got an empty one in row 1"),
        ([[1, MASK]], 4, (), f"must not contain the mask id {MASK}, got it in row 0"),
        ([[1]], 0, (), "gen_length must be at least 1 token, got 0"),
        ([[1]], 4, ([1], [2]), "one answer per prompt, 1, got 2"),
        ([[1]], 1, ([1, 2],), "at most gen_length=1 tokens, got 2 in row 0"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    prompts: list[list[int]], gen_length: int, templates: tuple[list[int], ...], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        blank(prompts, gen_length, templates=templates)
