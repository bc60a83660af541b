import torch

from dllm_decode import DecodeConfig
from dllm_decode.core.canvas import Canvas
from dllm_decode.core.passes import Window
from dllm_decode.core.rows import Request, Row

MASK, EOS = 9, 8


def blank(*rows: Row, width: int = 8) -> Canvas:
    return Canvas.blank(rows, width=width, mask_id=MASK, eos_ids=(EOS,))


def row(
    prompt: list[int], template: tuple[int, ...] = (), gen_length: int = 4, align: int = 1
) -> Row:
    config = DecodeConfig(gen_length=gen_length)
    return Row.of(Request(0, prompt, config, template), align, MASK)


def settled(canvas: Canvas, answers: list[list[int]]) -> Canvas:
    """Writes and settles answers from position 0 on, where they are not [MASK]."""
    window = Window.of(canvas.prompt_lengths.tolist(), len(answers[0]), canvas)
    new = torch.tensor(answers)
    return Canvas(
        **{
            **vars(canvas),
            "tokens": window.put(canvas.tokens, new != MASK, new),
            "unsettled": window.put(canvas.unsettled, new != MASK, False),
        }
    )


def test_rows_begin_in_column_0_and_what_is_nobodys_is_a_settled_eos() -> None:
    canvas = blank(row([1, 2, 3]), row([4]))
    assert canvas.tokens.tolist() == [[1, 2, 3, *[MASK] * 4, EOS], [4, *[MASK] * 4, *[EOS] * 3]]
    assert canvas.unsettled.sum(-1).tolist() == [4, 4]
    assert not canvas.unsettled[1, 5:].any()
    assert not canvas.eos.any()
    assert canvas.answers().tolist() == [[MASK] * 4] * 2


def test_what_fills_up_the_last_block_of_a_block_causal_row_is_open_but_no_part_of_its_answer() -> (
    None
):
    canvas = blank(row([1, 2, 3, 4, 5], gen_length=2, align=4))
    assert canvas.unsettled[0].tolist() == [False] * 5 + [True] * 3
    assert canvas.unfinished[0].tolist() == [False] * 5 + [True] * 2 + [False]
    assert canvas.answers().tolist() == [[MASK, MASK]]


def test_template_tokens_are_given_and_the_rest_is_unsettled() -> None:
    canvas = blank(row([1], (MASK, 5)), row([1]), width=5)
    assert canvas.answers().tolist() == [[MASK, 5, MASK, MASK], [MASK] * 4]
    assert canvas.given.tolist() == [[True, False, True, False, False], [True, *[False] * 4]]
    assert torch.equal(canvas.masked, canvas.unsettled)


def test_answers_of_any_length_are_read_with_eos_after_their_ends() -> None:
    canvas = blank(row([1, 2], gen_length=2), row([3], gen_length=4), width=5)
    assert canvas.answers().tolist() == [[MASK, MASK, EOS, EOS], [MASK] * 4]


def test_truncation_writes_eos_after_the_first_one_of_some_rows() -> None:
    canvas = settled(blank(row([EOS, 1]), row([EOS, 1])), [[MASK, EOS, MASK, 3]] * 2)
    cut = canvas.truncated(torch.tensor([True, False]), keeps_tokens=False)
    assert cut.answers().tolist() == [[MASK, EOS, EOS, EOS], [MASK, EOS, MASK, 3]]
    kept = canvas.truncated(None, keeps_tokens=True)
    assert kept.answers().tolist() == [[MASK, EOS, EOS, 3]] * 2


def test_a_given_token_after_the_end_stays() -> None:
    canvas = blank(row([1], (EOS, MASK, 5, MASK))).truncated(None, keeps_tokens=False)
    assert canvas.answers().tolist() == [[EOS, EOS, 5, EOS]]


def test_rows_that_join_keep_their_columns() -> None:
    canvas = blank(row([1])).joined(blank(row([2, 3, 4]), width=10))
    assert canvas.tokens.tolist() == [
        [1, *[MASK] * 4, *[EOS] * 5],
        [2, 3, 4, *[MASK] * 4, *[EOS] * 3],
    ]
    assert canvas.answers().tolist() == [[MASK] * 4] * 2
    taken = canvas.take(torch.tensor([1]))
    assert taken.tokens[0, :3].tolist() == [2, 3, 4]
    assert taken.prompt_lengths.tolist() == [3]


def test_a_window_reads_and_writes_columns_of_each_row_s_own() -> None:
    canvas = blank(row([1, 2, 3]), row([4]))
    window = Window.of([3, 1], 4, canvas)
    assert window.part(canvas.tokens).tolist() == [[MASK] * 4] * 2
    where = torch.tensor([[True, False, False, False], [False, True, False, False]])
    new = torch.tensor([[5, 0, 0, 0], [0, 6, 0, 0]])
    written = window.put(canvas.tokens, where, new)
    assert written[0].tolist() == [1, 2, 3, 5, MASK, MASK, MASK, EOS]
    assert written[1].tolist() == [4, MASK, 6, MASK, MASK, EOS, EOS, EOS]
    assert canvas.tokens[0, 3] == MASK


def test_a_window_that_reaches_beyond_the_canvas_does_not_write_its_last_column() -> None:
    canvas = blank(row([1, 2, 3]), row([4]))
    window = Window.of([6, 4], 4, canvas)
    where, new = torch.ones(2, 4, dtype=torch.bool), torch.tensor([[5, 6, 7, 0], [1, 2, 3, 0]])
    assert window.put(canvas.tokens, where, new)[:, 4:].tolist() == [
        [MASK, MASK, 5, 6],
        [1, 2, 3, 0],
    ]
    opened = window.with_open([(6, 7), (5, 8)], torch.device("cpu"))
    assert opened.open is not None
    assert opened.open.tolist() == [
        [True, False, False, False],
        [False, True, True, True],
    ]
