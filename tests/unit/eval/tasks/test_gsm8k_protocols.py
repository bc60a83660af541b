"""GSM8K's published settings: prompts, demonstrations, lengths and where answers state a number."""

import json
from pathlib import Path

import eval_runs
import pytest

from eval.runs.names import parse_task
from eval.runs.settings import Run
from eval.runs.sweep import Loaded, Sweep, decoding_of
from eval.tasks import Gsm8k
from eval.tasks.gsm8k_protocols import PROTOCOLS
from samplers import FixedSchedule


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, first, last in (("test", 101, 103), ("train", 1, 13)):
        rows = [
            {
                "question": f"How much is {i} and {i}?",
                "answer": f"It is {i}+{i}=<<{i}+{i}={2 * i}>>{2 * i}.\nSo\n#### {2 * i}",
            }
            for i in range(first, last)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
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


def test_every_protocol_is_tested() -> None:
    assert PUBLISHED.keys() == PROTOCOLS.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_address_alone_gives_the_published_setting(folder: Path, name: str) -> None:
    ending, num_shown, num_turns, gen_length, block_length = PUBLISHED[name]
    selection = parse_task(f"gsm8k?path={folder}&protocol={name}")
    example = selection.examples()[0]
    turns = [] if isinstance(example.prompt, str) else example.prompt
    text = "".join(turn["content"] for turn in example.turns())
    assert text.endswith(ending)
    assert text.count("How much is") == num_shown + 1
    assert len(turns) == num_turns
    assert "<<" not in text
    run = Run(
        eval_runs.model(), eval_runs.TOKENIZER, selection, FixedSchedule(8),
        decoding=decoding_of(selection, {}),
    )  # fmt: skip
    settings = run.settings(selection.examples())
    assert settings.decoding.gen_length == gen_length
    assert settings.block_length == block_length
    assert settings.prompts == ("chat" if num_turns else "plain")


def test_a_demonstration_is_worded_as_its_protocol_words_answers(folder: Path) -> None:
    plain = str(Gsm8k(str(folder), protocol="dream_base").examples()[0].prompt)
    assert plain.startswith(
        "Q: How much is 1 and 1?\nA: It is 1+1=2. So The answer is 2.\n\nQ: How much is 2 and 2?"
    )
    turns = Gsm8k(str(folder), protocol="d2f").examples()[0].turns()
    shown = turns[0]["content"].removeprefix("Question: How much is ").split()[0]
    assert (
        turns[1]["content"] == f"It is {shown}+{shown}={2 * int(shown)}.\nSo\n#### {2 * int(shown)}"
    )
    fixed = [Gsm8k(str(folder), protocol="dllm").examples()[i].turns()[:-1] for i in (0, 1)]
    assert fixed[0] == fixed[1]
    drawn = [Gsm8k(str(folder), protocol="d2f").examples()[i].turns()[:-1] for i in (0, 1)]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        (" 101+101. The answer is 202.", 1.0, 1.0),
        # At the end of the text the number counts whole.
        ("The answer is 202", 1.0, 1.0),
        ("The answer is 202.\nQ: and 5?\nA: The answer is 10.", 1.0, 1.0),
        ("#### 202", 0.0, 1.0),
        ("The answer is 20.", 0.0, 0.0),
    ],
)
def test_a_sentence_states_the_number(
    folder: Path, text: str, strict: float, flexible: float
) -> None:
    task = Gsm8k(str(folder), protocol="dream")
    found = task.score(task.examples()[0], text)
    assert found == {"answer": strict, "answer_flexible": flexible}


def test_lengths_asked_for_come_before_those_of_the_protocol(folder: Path) -> None:
    address = f"gsm8k?path={folder}&protocol=d2f"
    assert parse_task(f"{address}&gen_length=128").task.gen_length == 128
    selection = parse_task(address)
    config = decoding_of(selection, {"gen_length": 96, "block_length": 48})
    assert (config.gen_length, config.block_length) == (96, 48)
    # The published blocks of 64 are longer than the answer.
    assert decoding_of(selection, {"gen_length": 40}).block_length == 40
    task = Gsm8k(protocol="llada_base")
    assert task == eval(repr(task))
    assert task.gen_length == 1024


def test_a_sweep_leaves_the_block_length_to_each_task(folder: Path) -> None:
    tasks = (f"gsm8k?path={folder}&protocol=llada", "word_problems?limit=1")
    sweep = Sweep(("toy",), tasks, ("FixedSchedule()",))
    loaded = {"toy": Loaded(eval_runs.model(), eval_runs.TOKENIZER, "float32")}
    runs = list(sweep.runs(loaded, sweep.selections(), trace=False))
    found = [run.settings(run.selection.examples()).block_length for run in runs]
    assert found == [8, 32]
