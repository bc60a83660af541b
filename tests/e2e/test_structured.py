"""Answers that always have a given form: `generate` and the command line, with `mini`."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dllm_decode import (
    JsonSchema,
    OneOf,
    Regex,
    SelfVerify,
    StepEvent,
    generate,
    load_model,
    roll_out,
)
from dllm_decode.cli.main import main

QUESTION = (
    "emma has 12 apples . emma finds 5 more apples and then gives 2 apples to ben . "
    "how many apples does emma have now ?"
)
LOADED: Any = load_model("mini")
MODEL, TOKENIZER = LOADED
ask = partial(generate, MODEL, TOKENIZER, QUESTION)
ASKED: Any = {"gen_length": 64}
NARROW = r"emma has \d\d? \. #### \d\d?"
LIST: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}


def test_every_answer_has_its_own_form() -> None:
    constraint = [Regex(NARROW), None, OneOf(["15", "16", "17"]), JsonSchema(LIST)]
    for options in ({}, {"temperature": 1.0, "seed": 3}, {"verifier": SelfVerify()}):
        out = generate(MODEL, TOKENIZER, [QUESTION] * 4, constraint=constraint, **ASKED, **options)
        narrow, free, chosen, listed = out.texts
        assert re.fullmatch(NARROW, narrow)
        assert chosen in ("15", "16", "17")
        numbers = json.loads(listed)
        assert 2 <= len(numbers) <= 3
        assert all(isinstance(number, int) for number in numbers)
        if not options:
            assert free == ask(**ASKED).texts[0]


def test_a_pattern_that_the_model_would_follow_changes_no_token() -> None:
    plain = ask(**ASKED)
    constrained = ask(constraint=Regex(r".*#### \d+"), **ASKED)
    assert constrained.texts == plain.texts
    assert plain.texts[0].endswith("#### 15")


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}], ids=str)
def test_events_tell_the_tokens_that_a_constraint_forced(options: Any) -> None:
    forced: list[str] = []

    def watch(event: StepEvent) -> None:
        if event.forced is not None:
            forced.extend(
                TOKENIZER.decode([int(token)]) for token in event.after.tokens[event.forced]
            )

    for constraint in (None, Regex(r".*#### \d+"), Regex(r".*#### 42")):
        ask(constraint=constraint, observers=[watch], **ASKED, **options)
        # The model's own answer is 15.
        assert forced == (["42"] if constraint == Regex(r".*#### 42") else [])


def test_several_answers_and_templates_keep_the_form() -> None:
    out = ask(constraint=OneOf(["15", "17"]), num_return_sequences=3, temperature=2.0, **ASKED)
    assert set(out.texts) <= {"15", "17"}
    form = r"now \d+ - \d+ = \d+ \. #### \d+"
    filled = ask(templates="now [MASK:5] . #### [MASK]", constraint=Regex(form))
    assert re.fullmatch(form, filled.texts[0])


def test_a_complete_answer_that_fills_its_space_ends_with_stop() -> None:
    """The reason was "length", as if something had been cut off."""
    constraint = Regex("now( [0-9]){3}")
    for given, reason in ((constraint, "stop"), (None, "length")):
        (answer,) = ask(constraint=given, gen_length=4)
        assert (len(answer.token_ids), answer.finish_reason) == (4, reason)
        options: Any = {"constraint": given, "gen_length": 4, "temperature": 0.1}
        (group,) = roll_out(MODEL, TOKENIZER, [QUESTION], **options)
        assert {rollout.finish for rollout in group.rollouts} == {reason}


@pytest.mark.usefixtures("no_checks_of_types")
def test_a_wrong_constraint_is_refused() -> None:
    with pytest.raises(ValueError, match="gen_length must be at least 3"):
        ask(constraint=Regex("1 2 3"), gen_length=2)
    with pytest.raises(ValueError, match=r"constraint must be Regex.*got '\[0-9\]'"):
        ask(constraint="[0-9]", **ASKED)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tokenizer can write"):
        ask(constraint=OneOf(["15", "{"]), **ASKED)


def test_the_command_line_has_constraints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", "--gen-length", "64", QUESTION]
    assert main([*words, "--choice", "15", "--choice", "17"]) == 0
    assert capsys.readouterr().out.strip() in ("15", "17")
    assert main([*words, "--regex", NARROW]) == 0
    assert re.fullmatch(NARROW, capsys.readouterr().out.strip())
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(LIST))
    assert main([*words, "--json-schema", str(file)]) == 0
    assert len(json.loads(capsys.readouterr().out)) in (2, 3)
    assert main([*words, "--json-schema", str(file), "--regex", "1"]) == 2
    assert "got several" in capsys.readouterr().err
    file.write_text("{")
    assert main([*words, "--json-schema", str(file)]) == 2
    assert "must be a file of JSON" in capsys.readouterr().err


def test_a_line_of_a_file_has_a_constraint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines: list[dict[str, Any]] = [
        {"text": QUESTION, "constraint": {"choice": ["16", "17"]}},
        {"text": QUESTION},
        {"text": QUESTION, "constraint": {"json": LIST}},
    ]
    source.write_text("\n".join(map(json.dumps, lines)))
    words = ["generate", "--gen-length", "64", "--input", str(source), "--output", str(target)]
    assert main(words) == 0
    texts = {row["line"]: row["text"] for row in map(json.loads, target.read_text().splitlines())}
    assert texts[1] in ("16", "17")
    assert texts[2].endswith("#### 15")
    assert len(json.loads(texts[3])) in (2, 3)
    assert main([*words, "--regex", "1"]) == 2
    source.write_text(json.dumps({"text": QUESTION, "constraint": {"regexp": "1"}}))
    target.unlink()
    assert main(words) == 2
    assert "Line 1" in capsys.readouterr().err
