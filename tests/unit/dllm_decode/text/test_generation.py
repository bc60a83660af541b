"""Texts, chats and ids in; texts out."""

import json
import re
from copy import deepcopy
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plugins_under_test import plugin
from served import chat_of as chat
from tokenizers.processors import TemplateProcessing
from transformers import TextStreamer

from dllm_decode import (
    ARVerify,
    DualCache,
    StepEvent,
    StopRule,
    StopStrings,
    decode,
    decode_many,
    generate,
    load_model,
    load_target,
    stream,
)
from dllm_decode.core import user_warnings
from dllm_decode.core.output import final_tokens
from dllm_decode.core.prompts import token_lists
from dllm_decode.text.blanks import template_ids
from dllm_decode.text.prose import Prose
from dllm_decode.text.tokenization import prompt_ids
from samplers import ConfidenceThreshold, FixedSchedule, JointThreshold, Wino
from samplers.expression import PACKAGES

MODEL, LOADED = load_model("mini")
TOKENIZER: Any = LOADED
QUESTION = (
    "emma has 12 apples . emma buys 4 more apples . then emma sells 3 apples . "
    "how many apples does emma have now ?"
)
OTHER = "emma has 5 apples . how many apples does emma have now ?"
SAMPLER = ConfidenceThreshold(0.9)
OPTIONS: Any = {"gen_length": 32, "cache": DualCache()}
ask = partial(generate, MODEL, TOKENIZER)


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"])


def ids_of_chat(text: str) -> list[int]:
    prompt = TOKENIZER.apply_chat_template(chat(text), add_generation_prompt=True, tokenize=False)
    return list(TOKENIZER(prompt, add_special_tokens=False)["input_ids"])


def test_each_form_of_inputs_means_what_it_says() -> None:
    texts, chats = [ids_of(QUESTION), ids_of(OTHER)], [ids_of_chat(QUESTION), ids_of_chat(OTHER)]
    assert texts != chats
    turns = TOKENIZER.apply_chat_template(chat(QUESTION), tokenize=True, add_generation_prompt=True)
    both = TOKENIZER([QUESTION, OTHER], padding=True, return_tensors="np")
    forms: list[tuple[Any, list[list[int]]]] = [
        (QUESTION, chats[:1]), ([QUESTION, OTHER], chats), (chat(QUESTION), chats[:1]),
        ([chat(QUESTION), chat(OTHER)], chats), (texts[0], texts[:1]), (texts, texts),
        (torch.tensor(texts[:1]), texts[:1]), (TOKENIZER([QUESTION, OTHER]), texts),
        ([torch.tensor(ids) for ids in texts], texts), (TOKENIZER(QUESTION), texts[:1]),
        (turns, chats[:1]), (TOKENIZER(QUESTION, return_tensors="pt"), texts[:1]),
        (torch.tensor(texts[0]), texts[:1]), (np.array(texts[0]), texts[:1]),
        (np.array(texts[:1]), texts[:1]),
        ([np.array(texts[0]), np.array(texts[0])], [texts[0], texts[0]]),
        (list(np.array(texts[0])), texts[:1]), (both, texts),
        ((text for text in (QUESTION, OTHER)), chats),
        ((chat(text) for text in (QUESTION, OTHER)), chats),
        ([{"role": "user", "content": [{"type": "text", "text": OTHER}]}], chats[1:]),
    ]  # fmt: skip
    for inputs, expected in forms:
        prompts = prompt_ids(TOKENIZER, inputs)
        assert [list(map(int, ids)) for ids in prompts] == expected


def test_a_text_is_put_through_the_chat_template_unless_it_is_to_be_plain() -> None:
    """The question of the README was answered by ''."""
    assert prompt_ids(TOKENIZER, QUESTION, chat=True) == [ids_of_chat(QUESTION)]
    with pytest.warns(UserWarning, match="has a chat template, and the texts are not") as warned:
        plain = prompt_ids(TOKENIZER, [QUESTION, OTHER], chat=False)
    assert plain == [ids_of(QUESTION), ids_of(OTHER)]
    assert len(warned) == 1
    templated = ask(chat(OTHER), SAMPLER, **OPTIONS)
    assert ask(OTHER, SAMPLER, **OPTIONS).texts == templated.texts != [""]


def test_without_a_chat_template_texts_are_plain_and_a_chat_is_refused() -> None:
    tokenizer = deepcopy(TOKENIZER)
    tokenizer.chat_template = None
    assert prompt_ids(tokenizer, QUESTION) == prompt_ids(tokenizer, QUESTION, chat=False)
    assert prompt_ids(tokenizer, QUESTION) == [ids_of(QUESTION)]
    with pytest.raises(ValueError, match="Pass texts instead, without chat=True"):
        prompt_ids(tokenizer, QUESTION, chat=True)


@pytest.mark.parametrize("how", ["auto", False])
def test_a_text_that_begins_with_a_special_token_is_read_as_it_is(how: Any) -> None:
    """The text has been through a template; a second template or special token would be wrong."""
    tokenizer = deepcopy(TOKENIZER)
    begin = (TOKENIZER.bos_token, TOKENIZER.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{begin[0]} $A", special_tokens=[begin]
    )
    assert tokenizer(QUESTION)["input_ids"][0] == begin[1]
    written = f"{TOKENIZER.bos_token} {QUESTION}"
    (ids,) = prompt_ids(tokenizer, written, chat=how)
    assert ids == TOKENIZER(written, add_special_tokens=False)["input_ids"]
    assert list(ids).count(TOKENIZER.bos_token_id) == 1


AN_ANSWER = {"role": "assistant", "content": "#### 5"}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        # Each word once. The model used to answer such half-read questions without a warning.
        (
            [f"zorblax {QUESTION}", OTHER, "wugs and zorblax , 3 wugs ?"],
            r"These words are not known to the tokenizer: zorblax, wugs\. "
            r"The model reads '<\|unknown\|>' for each\.",
        ),
        # From the second turn on, "<, endoftext, >" were named too, which the template writes.
        (
            [*chat(f"Zorblax , {OTHER}"), AN_ANSWER, *chat(OTHER)],
            r"not known to the tokenizer: Zorblax\. ",
        ),
        (" ".join(f"wug{n}" for n in range(25)), r"wug0, wug1, .*, wug19 and 5 more\. "),
    ],
    ids=["texts", "chat", "many"],
)  # fmt: skip
def test_unknown_words_are_named(inputs: Any, message: str) -> None:
    with pytest.warns(UserWarning, match=message) as warned:
        prompt_ids(TOKENIZER, inputs)
    assert len(warned) == 1


@pytest.mark.parametrize("unknown", [None, "<|eos|>"])
def test_known_words_and_tokenizers_that_know_every_word_do_not_warn(
    unknown: str | None,
) -> None:
    """GPT-2's unknown token is its end of text, which templates may write."""
    tokenizer = deepcopy(TOKENIZER)
    tokenizer.unk_token = unknown if unknown is None else tokenizer.eos_token
    assert tokenizer.unk_token_id == (None if unknown is None else tokenizer.eos_token_id)
    prompt_ids(tokenizer, [f"{QUESTION} {tokenizer.eos_token} zorblax", OTHER])
    prompt_ids(tokenizer, chat(f"zorblax {QUESTION}"))
    # Known words are not named, and neither are ids.
    prompt_ids(TOKENIZER, [QUESTION.upper(), "How many apples ?"])
    prompt_ids(TOKENIZER, [[TOKENIZER.unk_token_id, 7]])


def test_padding_is_never_read() -> None:
    rows, mask = torch.tensor([[5, 6, 7], [7, 8, 9]]), torch.tensor([[1, 1, 0], [0, 1, 1]])
    for prompts in (rows, rows.tolist()):
        assert token_lists(prompts, mask) == [[5, 6], [8, 9]]
    assert token_lists({"input_ids": rows, "attention_mask": mask}) == [[5, 6], [8, 9]]
    options: Any = {"sampler": SAMPLER, "gen_length": 4}
    padded = ask(rows, attention_mask=mask, **options)
    plain = ask([[5, 6], [8, 9]], **options)
    assert torch.equal(padded.decoded.tokens, plain.decoded.tokens)
    with pytest.raises(ValueError, match="attention_mask must be given with a tensor of several"):
        decode(MODEL, rows, **options)
    with pytest.raises(ValueError, match="attention_mask must be as long as its prompt, 2"):
        token_lists([[1, 2]], torch.tensor([[1, 1, 0]]))


def test_texts_are_those_of_decode_whatever_the_number_of_rows() -> None:
    questions = [QUESTION, OTHER, OTHER]
    plain = decode(MODEL, [ids_of_chat(text) for text in questions], SAMPLER, **OPTIONS)
    expected = [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in plain.answers()]
    assert all(expected)
    for num_rows in (1, 2, 8):
        out = ask(questions, SAMPLER, num_rows=num_rows, **OPTIONS)
        assert out.texts == expected
        assert out.tokens_per_forward == plain.tokens_per_forward
        assert out.decoded.forwards >= plain.forwards


@pytest.mark.parametrize(
    "sampler", [FixedSchedule(8), Wino(0.6, 0.9), JointThreshold(0.3, 0.0, 4)], ids=repr
)
def test_a_text_streamer_gets_the_answer_in_order(
    sampler: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    streamer = TextStreamer(TOKENIZER, skip_prompt=True)
    out = ask(chat(OTHER), sampler, gen_length=32, block_length=16, streamer=streamer)
    assert out.decoded.forwards > 1
    assert capsys.readouterr().out.strip() == out.texts[0].strip() != ""


def test_an_output_is_a_sequence_of_answers_and_a_file(tmp_path: Path) -> None:
    questions = [QUESTION, OTHER, OTHER]
    out = ask(questions, SAMPLER, **OPTIONS)
    assert len(out) == 3
    assert [answer.text for answer in out] == out.texts
    assert out[1].token_ids == out.decoded.answers()[1]
    assert out[-1].forwards == int(out.decoded.nfe[2])
    assert len(repr(out)) < 300
    assert out.texts[0][:20] in repr(out)
    out.save(tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == out.to_dict()
    assert out.to_dict()["answers"][0]["text"] == out.texts[0]


def test_a_finish_reason_says_whether_an_answer_had_room() -> None:
    ended = ask(OTHER, SAMPLER, gen_length=64)[0]
    full = ask(OTHER, SAMPLER, gen_length=4)[0]
    word = full.text.split()[-1]
    stopped = ask(OTHER, SAMPLER, gen_length=4, stop_strings=word)[0]
    assert [answer.finish_reason for answer in (ended, full, stopped)] == ["stop", "length", "stop"]
    assert len(full.token_ids) == 4


def test_a_stop_rule_keeps_what_was_committed_after_a_mask() -> None:
    """Masks were filled with EOS, and answers cut there: all texts were ''."""

    rounds = count(1)
    stop = plugin(StopRule, stops=lambda self, tokens: next(rounds) == 8)
    options: Any = {"prompts": [ids_of_chat(QUESTION)], "gen_length": 32, "block_length": 32}
    unstopped = decode(MODEL, sampler=FixedSchedule(32), **options)
    out = decode(MODEL, sampler=FixedSchedule(32), stop=stop, **options)
    assert int(out.nfe[0]) == 8
    assert bool(out.unsettled[0, 0])
    settled = out.tokens[0][~out.unsettled[0]]
    assert out.answers() == [[token for token in settled.tolist() if token not in out.eos_ids]]
    # Lengths were counted up to the first mask, which gave 1.
    assert out.lengths().tolist() == [len(out.answers()[0]) + 1] != [1]
    assert torch.equal(settled, unstopped.tokens[0][~out.unsettled[0]])
    assert not unstopped.unsettled.any()


def test_stop_strings_wait_for_tokens_that_may_be_taken_back() -> None:
    """A stop string stopped an answer that does not contain it."""
    options: Any = {"sampler": Wino(0.6, 0.9), "gen_length": 32, "block_length": 16}
    settled_words: set[str] = set()

    def note(event: StepEvent) -> None:
        (settled,) = final_tokens(event.rows, event.after, is_final=True)
        settled_words.update(TOKENIZER.decode(settled).split())

    unstopped = ask(chat(OTHER), observers=[note], **options)
    replaced = [word for word in settled_words if word not in unstopped.texts[0]]
    assert replaced
    assert ask(chat(OTHER), stop_strings=replaced, **options).texts == unstopped.texts


@pytest.mark.parametrize(
    ("inputs", "options", "sentence"),
    [
        ([], {}, "at least one text, chat or prompt"),
        ([{"text": "a"}], {}, 'must have "role" and "content"'),
        ([[{"role": "user", "content": "a"}], []], {}, r"have at least one message, got \[\]"),
        ([[{"role": "user", "content": "a"}], 5], {}, "of one kind, got a chat and 5"),
        ([{"role": "robot", "content": "a"}], {}, "role of a message must be one of system,"),
        (torch.tensor([[1.5]]), {}, "Token ids must be integers"),
        ([[1, 1.5]], {}, r"Token ids must be integers, got 1\.5\."),
        ([[True, False]], {}, "Token ids must be integers, got True, which is a truth value"),
        ([QUESTION, 5], {}, "inputs must be of one kind, got a text and 5"),
        ([[5, 10**6]], {}, r"Token ids must be in \[0, 432\) for mini, got 1000000"),
        ([[]], {}, "A prompt must have at least one token"),
        (
            QUESTION,
            {"gen_length": 4, "max_new_tokens": 4},
            "max_new_tokens must be left out",
        ),
        (
            [QUESTION] * 2,
            {"streamer": TextStreamer(TOKENIZER)},
            "must be given with a single input",
        ),
        (QUESTION, {"stop_strings": ("",)}, "A stop string must have at least one character"),
        (QUESTION, {"steps": 128}, r"steps is no option of a decode: .* FixedSchedule\(n\)"),
        (QUESTION, {"remasking": "random"}, r"FixedSchedule\(n, order=\"random\"\) its \"random\""),
        (QUESTION, {"do_sample": False, "temperature": 0.7}, "contradicts temperature=0.7"),
        (QUESTION, {"num_return_sequences": 0}, "num_return_sequences must be at least 1"),
        (["ab"], {"attention_mask": [[1, 1]]}, "must be given with token ids, got texts"),
        ("a\ud800", {}, r"one that UTF-8 can encode, got '\\ud800' at character 1"),
        ([{"role": "user", "content": [{"type": "image"}]}], {}, "models here read text alone"),
        (5, {}, "inputs must be texts, chats or token ids, got 5"),
        (QUESTION, {"templates": "emma has"}, r"must have a blank, such as \[MASK:5\]"),
        (QUESTION, {"templates": "[MASK:0]"}, "between 1 and 1048576 tokens, got"),
        (QUESTION, {"templates": ["[MASK]"] * 2}, "one for each of 1 answers, got 2"),
        (QUESTION, {"templates": "[MASK]", "gen_length": 8}, "must be left out with a template"),
        (QUESTION, {"seeds": [5, 6]}, "seeds must hold one for each of 1 answers, got 2"),
        (QUESTION, {"seeds": iter(())}, "seeds must hold one for each prompt, got 0 seeds"),
        (QUESTION, {"seeds": [5], "seed": 5}, "seed must be left out with seeds, .* got seed=5"),
        (QUESTION, {"seeds": np.array([5])}, r"In row 0: seed must be an integer, got np.int64\(5"),
        (f"a {TOKENIZER.mask_token}", {}, "pass the text to generate as templates="),
        (QUESTION, {"model": (MODEL, TOKENIZER), "templates": "[MASK]"}, "load_model returns two"),
        (
            QUESTION,
            {"templates": f"[MASK:{'5' * 5000}]"},
            r"between 1 and 1048576 tokens, got '\[M",
        ),
        (QUESTION, {"streamer": 5}, "streamer must be a streamer such as TextStreamer.*, got 5"),
        (QUESTION, {"do_sample": "x"}, "do_sample must be True or False, got 'x'"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], {}, "A part .*'text': 5}"),
        (QUESTION, {"observers": [].append}, "observers must be a sequence of functions"),
        (QUESTION, {"chat": "yes"}, "chat must be \"auto\", True or False, got 'yes'"),
    ],
)
@pytest.mark.usefixtures("no_checks_of_types")
def test_what_cannot_be_answered_is_refused_in_one_sentence(
    inputs: Any, options: dict[str, Any], sentence: str
) -> None:
    arguments = {"model": MODEL, "inputs": inputs, **options}
    with pytest.raises((ValueError, TypeError), match=sentence):
        generate(tokenizer=TOKENIZER, sampler=SAMPLER, **arguments)


def test_a_prompt_longer_than_the_model_s_maximum_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MODEL, "max_length", 40, raising=False)
    assert ask([[5, 6]], SAMPLER, gen_length=32).texts
    with pytest.raises(ValueError, match="at most 40 tokens together for mini, got 9 and gen_len"):
        ask([[5] * 9], SAMPLER, gen_length=32)
    with pytest.raises(ValueError, match=r"In row 1: .* at most 40 tokens together for mini"):
        ask([[5], [5] * 9], SAMPLER, templates=["[MASK:32]"] * 2)


def test_the_embedded_models_have_a_limit() -> None:
    """Mini took 7,800 tokens, and answered nothing after 16 s."""
    for name in ("mini", "mini-lists"):
        assert load_model(name)[0].max_length == 512


@pytest.mark.parametrize(
    ("inputs", "row"), [("", 0), ([OTHER, " \n"], 1), ([chat(OTHER), chat("")], 1)]
)
def test_a_blank_question_gives_a_warning_with_its_row(inputs: Any, row: int) -> None:
    """Arbitrary tokens were decoded without a word."""
    with pytest.warns(UserWarning, match=f"must hold a question each, .* blank text in row {row};"):
        prompt_ids(TOKENIZER, inputs)


def test_a_stop_string_stops_and_may_be_a_special_token() -> None:
    options: Any = {"gen_length": 32, "block_length": 4}
    unstopped = ask(OTHER, SAMPLER, **options)[0]
    words, special = unstopped.text.split(), deepcopy(TOKENIZER)
    at = next(n for n in range(2, len(words)) if not {words[n], words[n - 1]} & {*words[: n - 1]})
    word, both = words[at], " ".join(words[at - 1 : at + 1])
    special.add_special_tokens({"additional_special_tokens": [word]})
    assert word not in special.decode(ids_of(word), skip_special_tokens=True)
    # Before, the text part of "text <special>" stayed in the answer.
    for tokenizer, stop in product((TOKENIZER, special), (word, both)):
        stopped = generate(MODEL, tokenizer, OTHER, SAMPLER, stop_strings=stop, **options)[0]
        assert stopped.text.strip() == unstopped.text[: unstopped.text.index(stop)].strip()
        kept = Prose(tokenizer, (stop,)).rest(ids_of(unstopped.text))
        assert kept.strip() == stopped.text.strip()
        assert stopped.finish_reason == "stop"
        assert stopped.forwards < unstopped.forwards


def test_a_batch_of_a_tokenizer_is_taken_as_keywords() -> None:
    batch = TOKENIZER.apply_chat_template(chat(OTHER), tokenize=True, add_generation_prompt=True)
    named = ask(**batch, token_type_ids=[0], gen_length=32)
    assert named.texts == ask(OTHER, SAMPLER, gen_length=32).texts != [""]
    with pytest.raises(ValueError, match="input_ids must be left out beside inputs"):
        ask(OTHER, **batch)


def test_options_of_transformers_are_taken_where_they_mean_the_same() -> None:
    options: Any = {"max_new_tokens": 32}
    plain = ask(OTHER, gen_length=32)
    assert ask(OTHER, do_sample=False, **options).texts == plain.texts
    drawn = ask(OTHER, temperature=1.0, seed=3, **options)
    same = ask(OTHER, do_sample=True, seed=3, **options)
    assert torch.equal(same.decoded.tokens, drawn.decoded.tokens)
    word = plain.texts[0].split()[2]
    stopped = ask(OTHER, stop=word, **options)
    assert stopped.texts == ask(OTHER, stop_strings=[word], **options).texts
    assert stopped.texts != plain.texts


def test_answers_to_one_input_are_those_to_so_many_equal_inputs() -> None:
    options: Any = {"gen_length": 32, "temperature": 3.0, "seed": 1}
    out = ask([QUESTION, OTHER], num_return_sequences=3, **options)
    equal = ask([QUESTION] * 3 + [OTHER] * 3, **options)
    assert out.texts == equal.texts
    assert len(set(out.texts[:3])) == 3


def test_an_answer_with_a_seed_of_its_own_is_that_of_its_input_alone() -> None:
    """Above temperature 0 an answer depended on its place in the list."""
    options: Any = {"gen_length": 32, "temperature": 1.5}
    inputs, seeds = [QUESTION, OTHER, QUESTION, OTHER], [7, 7, 8, 9]
    texts = ask(inputs, seeds=seeds, **options).texts
    assert len(set(texts)) == 4
    assert ask(inputs[::-1], seeds=seeds[::-1], num_rows=2, **options).texts == texts[::-1]
    assert ask([QUESTION, OTHER], seeds=[7, 7], **options).texts == texts[:2]
    assert ask(OTHER, seed=9, **options).texts == texts[3:]
    several = ask([QUESTION, OTHER], seeds=[7, 8, 7, 9], num_return_sequences=2, **options)
    assert several.texts == [texts[0], texts[2], texts[1], texts[3]]


def test_several_answers_at_temperature_0_are_those_of_rules_that_draw() -> None:
    """Random orders were refused too, although their answers differ."""
    options: Any = {"gen_length": 32, "block_length": 32, "num_return_sequences": 3}
    out = ask(OTHER, FixedSchedule(4, order="random"), **options)
    assert len(set(out.texts)) == 3
    with pytest.warns(UserWarning, match="The 3 answers to each input are equal. At temperature=0"):
        ask(OTHER, FixedSchedule(4), **options)


@pytest.mark.usefixtures("no_checks_of_types")
def test_a_warning_names_the_line_that_called_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames were counted by hand; `generate` and Python 3.12 named lines of the package."""
    # The checks of types wrap each function, also while they are off.
    monkeypatch.setattr(user_warnings, "_PASSED_OVER", (*PACKAGES, "jaxtyping"))
    verifier = ARVerify(load_target("mini-ar", TOKENIZER))
    options: Any = {"verifier": verifier, "sampler": ConfidenceThreshold(0.5)}
    for call in (
        lambda: decode(MODEL, [[5]], gen_length=4, **options),
        lambda: decode_many(MODEL, [[5]], gen_length=4, **options),
        lambda: generate(MODEL, TOKENIZER, [[5]], gen_length=4, **options),
        lambda: generate(MODEL, TOKENIZER, [[5]], templates="zorblax [MASK]"),
        lambda: stream(MODEL, TOKENIZER, [[5]], gen_length=4, **options),
    ):
        with pytest.warns(UserWarning, match="has no effect|not known") as warned:
            call()
        assert [warning.filename for warning in warned] == [__file__]


def test_answers_say_when_each_token_was_committed_and_how_likely_it_was() -> None:
    options: Any = {"gen_length": 32, "temperature": 1.2, "top_p": 0.9, "seed": 1}
    plain = ask([QUESTION, OTHER], **options)
    out = ask([QUESTION, OTHER], return_logprobs=True, **options)
    assert out.texts == plain.texts
    assert plain[0].commits is None
    assert "commits" not in plain[0].to_dict()
    recorded = out.decoded.commits
    for row, answer in enumerate(out):
        parts = (part[row, : len(answer.token_ids)].tolist() for part in recorded)
        assert answer.commits == list(zip(*parts, strict=True)) != []
        assert answer.to_dict()["commits"][0] == answer.commits[0]._asdict()
    filled = ask(OTHER, templates="emma has [MASK:2] apples", return_logprobs=True)
    commits = filled[0].commits
    assert [commit == (-1, None, None) for commit in commits] == [True, True, False, False, True]


def test_templates_are_filled_between_given_words() -> None:
    questions = [QUESTION, OTHER]
    templates = ["emma has [MASK:1] + [MASK:3] apples", f"#### {TOKENIZER.mask_token} ."]
    out = ask(questions, templates=templates)
    assert re.fullmatch(r"emma has \S+ \+ \S+( \S+)* apples", out[0].text)
    assert re.fullmatch(r"#### \S+ \.", out[1].text)
    for question, template, answer in zip(questions, templates, out, strict=True):
        alone = ask(question, templates=template)
        assert alone[0] == answer
        assert answer.finish_reason == "length"
    # The length of a template that is shorter than another counted an EOS.
    assert out.decoded.lengths().tolist() == [len(answer.token_ids) for answer in out]
    without = ask(templates="emma has [MASK] apples .")
    assert re.fullmatch(r"emma has \S+ apples \.", without.texts[0])


def test_an_end_of_text_in_a_blank_leaves_its_position_empty() -> None:
    """The rest of the text was lost."""
    template = f"emma has 5 {TOKENIZER.eos_token} apples [MASK]"
    out = ask(OTHER, templates=template)
    (answer,) = out
    assert answer.text.startswith("emma has 5 apples")
    # The tokens after the EOS did not count.
    assert out.tokens_per_forward == len(answer.token_ids) / int(out.decoded.nfe.sum())


def test_one_space_before_a_blank_is_part_of_it() -> None:
    single, double = (
        template_ids(TOKENIZER, text, MODEL) for text in ("a [MASK] .", "a[MASK:2] .")
    )
    assert single == [*ids_of("a"), MODEL.mask_id, *ids_of(" .")]
    assert double == [*ids_of("a"), *[MODEL.mask_id] * 2, *ids_of(" .")]


@pytest.mark.usefixtures("no_checks_of_types")
@pytest.mark.parametrize("given", [b"abc", bytearray(b"abc"), [b"abc"], {"input_ids": b"abc"}])
def test_bytes_are_no_token_ids(given: Any) -> None:
    """They were decoded as the token ids 97, 98 and 99, since entries of bytes are integers."""
    with pytest.raises(ValueError, match=r"token ids|Token ids must be integers, got b'abc'"):
        generate(MODEL, TOKENIZER, given, SAMPLER, **OPTIONS)
    for mask in (None, [[1, 1, 1]]):
        with pytest.raises(ValueError, match=r"must be lists of token ids .*, got b'abc' in row 0"):
            decode(MODEL, [b"abc"], SAMPLER, attention_mask=mask, gen_length=8)
    with pytest.raises(ValueError, match="Token ids must be integers, got b'abc'"):
        list(decode_many(MODEL, iter([b"abc"]), SAMPLER, gen_length=8))


@pytest.mark.usefixtures("no_checks_of_types")
@pytest.mark.parametrize("mask", [[[1, 0.5]], torch.tensor([[1.0, 0.5]]), [[1, 2]], [[1, None]]])
def test_a_mask_of_padding_is_0_or_1(mask: Any) -> None:
    """Every value but 0 counted as 1."""
    for prompts in ([[5, 6]], torch.tensor([[5, 6]])):
        with pytest.raises(ValueError, match="attention_mask must be 0 at padding and 1 elsewhere"):
            token_lists(prompts, mask)
        assert token_lists(prompts, [[True, False]]) == [[5]]


@pytest.mark.usefixtures("no_checks_of_types")
@pytest.mark.parametrize("run", [decode, decode_many])
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"templates": None}, "templates must be a list of answers, one per prompt, got None"),
        ({"templates": [5]}, "In row 0: Token ids must be in a list, got 5"),
        ({"config": {}}, "config must be a DecodeConfig, got {}"),
        ({"attention_mask": 5}, "attention_mask must be lists of 0 and 1, one per prompt, got 5"),
    ],
)
def test_arguments_of_a_wrong_kind_are_refused_in_one_sentence(
    run: Any, options: dict[str, Any], sentence: str
) -> None:
    """Such arguments ended in tracebacks."""
    with pytest.raises(ValueError, match=sentence):
        list(run(MODEL, [[5, 6]], SAMPLER, **options))


@pytest.mark.usefixtures("no_checks_of_types")
@pytest.mark.parametrize("strings", ["after", (5,), None])
def test_stop_strings_are_a_tuple_of_texts(strings: Any) -> None:
    """A single text stopped an answer at each of its letters."""
    with pytest.raises(ValueError, match=r"^Stop strings must be a tuple of texts, got "):
        StopStrings(TOKENIZER, strings)
