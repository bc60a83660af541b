"""GSM8K: published settings, prompts, demonstrations, and where answers state a number."""

from pathlib import Path

import eval_runs
import pytest
from eval_runs import write_lines

from dllm_decode.blocks import Sequential
from dllm_decode.settings.models import Loaded
from eval.runs.settings import config_of
from eval.runs.task_addresses import parse_task
from eval.sweeps.sweep import Sweep
from eval.tasks.gsm8k import PROTOCOLS, Gsm8k, flexible_answer, strict_answer


def row(i: int) -> dict[str, str]:
    return {
        "question": f"How much is {i} and {i}?",
        "answer": f"It is {i}+{i}=<<{i}+{i}={2 * i}>>{2 * i}.\nSo\n#### {2 * i}",
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, numbers in (("test", range(101, 103)), ("train", range(1, 13))):
        write_lines(tmp_path / f"{name}.jsonl", *map(row, numbers))
    return tmp_path


ASKED = "How much is 101 and 101?"
QUESTION = f"Question: {ASKED}\nAnswer:"
STEPS = f"Question: {ASKED}\nLet's think step by step\nAnswer:"
SHORT = f"Q: {ASKED}\nA:"
SHORT_STEPS = f"Q: {ASKED}\nA: Let's think step by step."

# name: end of the prompt, demonstrations, turns (0: plain text), answer length, block length.
PUBLISHED = {
    "lm_eval": (QUESTION, 5, 0, 256, 32),
    "fast_dllm": (QUESTION, 5, 1, 256, 32),
    "fast_dllm_dream": (QUESTION, 5, 0, 256, 32),
    "llada": (STEPS, 4, 9, 256, 8),
    "llada_pure": (STEPS, 4, 9, 512, 512),
    "llada_1_5": (STEPS, 4, 9, 256, 16),
    "llada_base": (QUESTION, 5, 0, 1024, 1024),
    "dparallel": (QUESTION, 0, 1, 256, 32),
    "d2f": (QUESTION, 4, 9, 512, 64),
    "d3llm": (SHORT_STEPS, 0, 0, 256, 32),
    "dllm": (SHORT, 5, 11, 512, 512),
    "dream": (SHORT, 0, 1, 256, 256),
    "dream_base": (SHORT, 8, 0, 256, 256),
    "dparallel_dream": (SHORT_STEPS, 0, 1, 256, 256),
    "d3llm_dream": (SHORT_STEPS, 0, 1, 256, 256),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_address_alone_gives_the_published_setting(folder: Path, name: str) -> None:
    ending, num_shown, num_turns, gen_length, block_length = PUBLISHED[name]
    selection = parse_task(f"gsm8k?path={folder}&protocol={name}")
    example = selection.examples()[0]
    selection.require_scores([example])
    turns = [] if isinstance(example.prompt, str) else example.prompt
    text = "".join(turn["content"] for turn in example.turns())
    assert text.endswith(ending)
    assert text.count("How much is") == num_shown + 1
    assert len(turns) == num_turns
    assert "<<" not in text + example.target
    config = config_of(selection, {})
    assert (config.gen_length, config.block_length) == (gen_length, block_length)
    assert selection.task.prompts == ("chat" if num_turns else "plain")


def test_a_demonstration_is_worded_as_its_protocol_words_answers(folder: Path) -> None:
    plain = str(Gsm8k(str(folder), protocol="dream_base").examples()[0].prompt)
    assert plain.startswith(
        "Q: How much is 1 and 1?\nA: It is 1+1=2. So The answer is 2.\n\nQ: How much is 2 and 2?"
    )
    turns = Gsm8k(str(folder), protocol="d2f").examples()[0].turns()
    i = int(turns[0]["content"].removeprefix("Question: How much is ").split()[0])
    assert turns[1]["content"] == f"It is {i}+{i}={2 * i}.\nSo\n#### {2 * i}"
    fixed = [example.turns()[:-1] for example in Gsm8k(str(folder), protocol="dllm").examples()]
    assert fixed[0] == fixed[1]
    drawn = [example.turns()[:-1] for example in Gsm8k(str(folder), protocol="d2f").examples()]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("protocol", ["lm_eval", "llada"])
def test_a_question_is_never_its_own_demonstration(folder: Path, protocol: str) -> None:
    for example in Gsm8k(str(folder), num_fewshot=4, protocol=protocol).examples("train"):
        question = row(example.meta["row"] + 1)["question"]
        text = "".join(turn["content"] for turn in example.turns())
        assert text.count(question) == 1
        assert text.count("Question: ") == 5
    with pytest.raises(ValueError, match="number of training rows, 12, got 12"):
        Gsm8k(str(folder), num_fewshot=12).examples()


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("#### 1,234", "1234", "1234"),
        ("she pays $1,234.", None, "1234"),
        ("it is -3", None, "-3"),
        ("#### -3 and then 7", "-3", "7"),
        ("#### 18.00", "18.00", "18.00"),
        ("#### 5 #### 6", "5", "6"),
        ("no number", None, None),
    ],
)
def test_numbers_are_extracted(text: str, strict: str | None, flexible: str | None) -> None:
    assert strict_answer(text) == strict
    assert flexible_answer(text) == flexible


@pytest.mark.parametrize(
    ("protocol", "text", "strict", "flexible"),
    [
        ("lm_eval", "It is 202.\n#### 202\n\nQuestion: and 5?\nAnswer: 5\n#### 5", 1.0, 1.0),
        ("dream", "The answer is 202.\nQ: and 5?\nA: The answer is 10.", 1.0, 1.0),
        # A number at the end of the text counts in full.
        ("dream", "The answer is 202", 1.0, 1.0),
        ("dream", "#### 202", 0.0, 1.0),
        ("dream", "The answer is 20.", 0.0, 0.0),
    ],
)
def test_answers_are_scored_up_to_the_next_question(
    folder: Path, protocol: str, text: str, strict: float, flexible: float
) -> None:
    task = Gsm8k(str(folder), num_fewshot=0, protocol=protocol)
    scores = task.score(task.examples()[0], text)
    assert scores == {"answer": strict, "answer_flexible": flexible}


def test_lengths_asked_for_come_before_those_of_the_protocol(folder: Path) -> None:
    address = f"gsm8k?path={folder}&protocol=d2f"
    assert parse_task(f"{address}&gen_length=128").task.gen_length == 128
    selection = parse_task(address)
    config = config_of(selection, {"gen_length": 96, "block_length": 48})
    assert (config.gen_length, config.block_length) == (96, 48)
    # The published blocks of 64 are longer than the answer.
    assert config_of(selection, {"gen_length": 40}).block_length == 40
    # A schedule brings its own.
    assert config_of(selection, {}, Sequential(4)).block_length is None
    task = Gsm8k(protocol="llada_base")
    assert task == eval(repr(task))


def test_a_sweep_leaves_the_block_length_to_each_task(folder: Path) -> None:
    tasks = (f"gsm8k?path={folder}&protocol=llada", "word_problems?limit=1")
    sweep = Sweep(("toy",), tasks, ("FixedSchedule()",))
    loaded = {"toy": Loaded(eval_runs.model(), eval_runs.TOKENIZER, "float32")}
    runs = list(sweep.runs(loaded, sweep.selections(), trace=False))
    lengths = [run.settings(run.selection.examples()).config.block_length for run in runs]
    assert lengths == [8, 32]
