"""A damaged file gives one sentence that names the file or the key, or a result, nothing else.

A file is damaged in one place: a value is replaced by a strange one, a key is dropped or renamed,
or bytes are cut, changed or put in. The reader, within seconds and without much memory, either
raises a ValueError or OSError whose text names the place, or reads the file and works.
"""

import json
import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import eval_runs
import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import EVERY_FAMILY, MODELS, OPTIONS, load_tiny, load_without_tokenizer, new_tiny

from dllm_decode import decode
from dllm_decode.models import load_model, save_model
from dllm_decode.models.loading.model_folder import ASSETS
from eval.reports.summary import summarise
from eval.runs.folder import Folder
from eval.runs.runner import execute
from eval.runs.task_addresses import parse_task
from eval.sweeps.sweep import read_sweep
from samplers import FixedSchedule

MAX_S = 10.0
MAX_GROWTH_KIB = 600_000

STRANGE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31 - 1, 2**63, 10**30, 10**400, 0.5, 1.5, -0.0, 1e308,
    float("nan"), float("inf"), float("-inf"), "", "a", "7", "\x00", "\ud800", [], [None], [1, 2],
    ["a"], [[]], {}, {"a": 1}, {"a": {"a": {}}},
)  # fmt: skip


class Damage(NamedTuple):
    """A damaged text.

    Attributes:
        content: The bytes that are written.
        keys: Keys on the path to the damaged place.
        is_typed: The value has the old type or is dropped, so the file may be valid and differ.
        what: Description of the damage.
    """

    content: bytes
    keys: tuple[str, ...]
    is_typed: bool
    what: str


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path to each value in a document, for at most three items of a list."""
    if path:
        yield path
    if not isinstance(value, (dict, list)):
        return
    keys = value if isinstance(value, dict) else range(3)[: len(value)]
    for key in keys:
        yield from paths_of(value[key], (*path, key))


DROPPED = object()


def damaged(document: Any, path: tuple[Any, ...], value: Any) -> Damage:
    """Replaces a value in a copy of a document, or drops its key."""
    copy = json.loads(json.dumps(document))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    kinds = [float if type(item) is int else type(item) for item in (holder[path[-1]], value)]
    if value is DROPPED:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    keys = tuple(key for key in path if isinstance(key, str))
    is_typed = value is DROPPED or kinds[0] == kinds[1]
    what = f"{path} is {'dropped' if value is DROPPED else repr(str(value)[:40])}"
    return Damage(json.dumps(copy).encode(), keys, is_typed, what)


RAW = (b"", b"{", b"}", b"[", b"]", b"\x00", b"\xff", b"\xed\xa0\x80", b"\n", b"1" * 5000, b"-",
       b'"', b"[" * 100_000, b"9" * 400, b",", b"\xef\xbb\xbf", b"e9")  # fmt: skip


def raw_damages(whole: bytes) -> st.SearchStrategy[Damage]:
    """Cuts some bytes out and puts others in."""

    def damage(at: float, length: int, put: bytes, behind: bool) -> Damage:
        start = int(at * len(whole))
        rest = b"" if behind else whole[start + length :]
        what = f"{length} bytes at {start} became {put[:9]!r}{' and the end' * behind}"
        return Damage(whole[:start] + put + rest, (), True, what)

    lengths = st.sampled_from([0, 0, 1, 2, 5, 40])
    return st.builds(
        damage, st.floats(0, 1, exclude_max=True), lengths, st.sampled_from(RAW), st.booleans()
    )


def damages(document: Any, *, written: bytes | None = None) -> st.SearchStrategy[Damage]:
    """Damages a JSON document, as a value or as a text."""
    paths = st.sampled_from(list(paths_of(document)))
    whole = json.dumps(document).encode() if written is None else written
    by_value = st.builds(damaged, st.just(document), paths, st.sampled_from(STRANGE))
    by_key = st.builds(damaged, st.just(document), paths, st.just(DROPPED))
    return st.one_of(by_value, by_value, by_value, by_key, raw_damages(whole))


@dataclass
class Reader:
    """Damages a file again and again, reads it, and counts the results.

    Attributes:
        file: The file that is damaged.
        names: One of these, or a damaged key, must be in a refusal.
        read: Reads the file.
        check: Checks what was read.
        whole: Makes the file's content from a damaged part.
    """

    file: Path
    names: tuple[str, ...]
    read: Callable[[], Any]
    check: Callable[[Any, Damage], object] = lambda found, damage: None
    whole: Callable[[bytes], bytes] = bytes
    counts: Counter[str] = field(default_factory=Counter)

    def fuzz(self, strategy: st.SearchStrategy[Damage], num_examples: int) -> "Reader":
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

        @settings(
            max_examples=num_examples, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(strategy)
        def run(damage: Damage) -> None:
            started = time.perf_counter()
            self.file.write_bytes(self.whole(damage.content))
            try:
                result = self.read()
                self.counts["read"] += 1
                self.check(result, damage)
            except (ValueError, OSError) as error:
                self.require_sentence(error, damage)
                self.counts["refused"] += 1
            assert time.perf_counter() - started < MAX_S, damage.what
            growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert growth < MAX_GROWTH_KIB, damage.what

        run()
        return self

    def require_sentence(self, error: Exception, damage: Damage) -> None:
        """Fails unless an error names the place, in a text of ours that is not too long."""
        text = str(error)
        # A value of the old type may be refused because something else does not fit it.
        names = (self.file.name, *damage.keys) if damage.is_typed else damage.keys
        assert any(name in text for name in (*self.names, *names)), (damage.what, text)
        assert not isinstance(error, UnicodeError), (damage.what, text)
        assert len(text) < 8000 + len(damage.content), (damage.what, text[:100])


SIZES = pytest.mark.parametrize(
    "share", [1, pytest.param(40, marks=pytest.mark.slow)], ids=["default", "long"]
)


# Models


def copied(family: str, folder: Path) -> Path:
    source = MODELS / family
    return Path(shutil.copytree(source, folder / family, ignore=shutil.ignore_patterns("golden*")))


def answer_of(model: Any) -> torch.Tensor:
    return decode(model, [[1, 2, 3]], FixedSchedule(2), gen_length=4, stop_at_eos=False).tokens


@pytest.mark.parametrize(
    ("family", "share"),
    [
        ("llada2_moe", 1),
        *(pytest.param(family, 10, marks=pytest.mark.slow) for family in EVERY_FAMILY),
    ],
)
def test_a_damaged_config_is_refused_or_the_model_is_the_same(
    family: str, share: int, tmp_path: Path
) -> None:
    folder, options = copied(family, tmp_path), OPTIONS.get(family, {})
    expected, file = answer_of(load_tiny(family)), folder / "config.json"

    def check(found: Any, damage: Damage) -> None:
        # A value of the old type, or a dropped key, may make another model of the file.
        if not damage.is_typed or may_answer(found):
            answer = answer_of(found)
            assert damage.is_typed or torch.equal(answer, expected), damage.what

    # A refusal names the key, or says that values do not fit each other or the weights.
    unfit = ("must hold exactly the tensors that ", "config.json' of a ")
    reader = Reader(file, unfit,
                    lambda: load_without_tokenizer(folder, **options)[0], check)  # fmt: skip
    reader.fuzz(damages(json.loads(file.read_text())), 60 * share)
    assert min(reader.counts.values()) > 5


def may_answer(model: Any) -> bool:
    """Says whether a model can decode a short prompt at all."""
    is_long_enough = model.max_length is None or model.max_length >= 8
    has_words = model.vocab_size > 4 and model.mask_id > 3
    return is_long_enough and has_words and not model.causal_block_length > 64


@SIZES
def test_a_damaged_generation_config_is_refused_or_read(share: int, tmp_path: Path) -> None:
    folder = copied("llada", tmp_path)
    file = folder / "generation_config.json"
    reader = Reader(file, (file.name,), lambda: load_without_tokenizer(folder))
    reader.fuzz(damages({"eos_token_id": [500, 501], "other": {"a": 1}}), 40 * share)
    assert min(reader.counts.values()) > 5


@SIZES
def test_a_damaged_weight_header_is_refused_or_the_model_is_the_same(
    share: int, tmp_path: Path
) -> None:
    small, folder = new_tiny(), tmp_path / "small"
    save_model(small, folder)
    path = folder / "model.safetensors"
    content, expected = path.read_bytes(), answer_of(small.eval())
    length = int.from_bytes(content[:8], "little")
    header, data = content[8 : 8 + length], content[8 + length :]

    def check(found: Any, damage: Damage) -> None:
        assert torch.equal(answer_of(found[0]), expected), damage.what

    names = ("model.safetensors", "The weight files must", "Weights must be stored")
    reader = Reader(path, names, lambda: load_without_tokenizer(folder), check,
                    lambda part: len(part).to_bytes(8, "little") + part + data)  # fmt: skip
    reader.fuzz(damages(json.loads(header), written=header), 60 * share)
    in_bytes = replace(reader, check=lambda found, damage: None, whole=bytes)
    in_bytes.fuzz(raw_damages(content[: 8 + length]), 20 * share)
    assert reader.counts["refused"] > 5


@SIZES
def test_a_damaged_tokenizer_is_refused_or_reads_and_writes(share: int, tmp_path: Path) -> None:
    folder = tmp_path / "mini"
    shutil.copytree(ASSETS / "mini", folder)
    model, tokenizer = load_model(folder)
    ids = {"mask_id": model.mask_id, "eos_ids": model.eos_ids}
    small = new_tiny(vocab_size=model.vocab_size, num_layers=1, **ids)
    save_model(small, folder, tokenizer=tokenizer)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        content = (folder / name).read_bytes()
        reader = Reader(
            folder / name, ("tokenizer",), lambda: load_model(folder)[1],
            lambda tokenizer, damage: tokenizer.decode(tokenizer.encode("emma has 12 apples .")),
        )  # fmt: skip
        reader.fuzz(damages(json.loads(content), written=content), 25 * share)
        (folder / name).write_bytes(content)
        assert reader.counts["refused"] > 2


# Tasks, sweeps and results


@SIZES
def test_damaged_questions_are_refused_by_line_or_read(share: int, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    first = json.dumps({"prompt": "1 + 1 =", "answer": "2", "id": "a"}).encode()
    chat = [{"role": "user", "content": "2 + 2 ="}]
    second = {"prompt": chat, "answer": 4, "id": "b", "note": [1]}
    address = f"jsonl:{file}?match=number"

    def check(examples: Any, damage: Damage) -> None:
        task = parse_task(address).task
        assert all(task.score(example, "4")["answer"] in (0.0, 1.0) for example in examples)
        assert len({example.id for example in examples}) == len(examples)

    reader = Reader(file, (file.name,), lambda: parse_task(address).examples(), check,
                    lambda part: first + b"\n" + part + b"\n")  # fmt: skip
    reader.fuzz(damages(second), 80 * share)
    assert min(reader.counts.values()) > 5


SWEEP = """model = "mini"
tasks = ["lists/copy?n=4&limit=20"]
samplers = ["FixedSchedule(steps_per_block=16)", "ConfidenceThreshold(threshold=0.9)"]
caches = ["NoCache()", "DualCache()"]
verifiers = ["SelfVerify(2)"]
blocks = ["Sequential()", "Sequential(8)"]
temperature = [0.0, 0.5]
gen_length = 16
banned_ids = [3, 4]
batch_size = 4
"""
TOML = (
    "true", "0", "-1", "1.5", "nan", "inf", "-inf", "1e400", "9" * 400, "9" * 5000, '""', '"a"',
    "[]", "[[]]", "{}", "{a = 1}", "1979-05-27", '["a", 1]', "[1, 1]", "[true, 1]", "[1e400]",
    "[" * 2000, '"\\ud800"', f'["FixedSchedule({"9" * 400})"]', f'["{"-" * 20_000}1"]',
    f'["FixedSchedule({"-" * 20_000}1)"]', '["FixedSchedule(\\u0000)"]', '["Prophet(Prophet)"]',
    f'["ConfidenceThreshold({"9" * 400})"]', '["DualCache(1.5)"]', '["ARVerify(1)"]',
    f'["lists/copy?limit={"9" * 5000}"]', '["lists/copy?n=0"]', '["lists/copy?limit=-1"]',
)  # fmt: skip


def toml_damages() -> st.SearchStrategy[Damage]:
    names = [line.split(" = ")[0] for line in SWEEP.splitlines()]

    def damage(name: str, value: str) -> Damage:
        lines = [
            f"{name} = {value}" if line.startswith(f"{name} =") else line
            for line in SWEEP.splitlines()
        ]
        return Damage("\n".join(lines).encode(), (), False, f"{name} = {value[:40]}")

    keys = [*names, "seed", "top_p", "top_k", "cfg_scale", "block_length", "prompts", "odd"]
    added = st.builds(
        lambda name, value: Damage(f"{name} = {value}\n{SWEEP}".encode(), (), False, name),
        st.sampled_from(keys), st.sampled_from(TOML),
    )  # fmt: skip
    by_value = st.builds(damage, st.sampled_from(names), st.sampled_from(TOML))
    return st.one_of(by_value, by_value, added, raw_damages(SWEEP.encode()))


@SIZES
def test_a_damaged_sweep_is_refused_or_read(
    share: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The checks of types would refuse some damages first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    file = tmp_path / "sweep.toml"

    def check(sweep: Any, damage: Damage) -> None:
        assert sweep.models and sweep.tasks and sweep.samplers  # noqa: PT018 - one fact

    reader = Reader(file, (file.name,), lambda: read_sweep(file), check)
    reader.fuzz(toml_damages(), 200 * share)
    assert min(reader.counts.values()) > 5


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = eval_runs.runs(samplers=(FixedSchedule(8),), task="lists/shuffle?n=4&limit=3")
    return execute(runs, tmp_path_factory.mktemp("whole")).path


@SIZES
@pytest.mark.parametrize("name", ["part-0.jsonl", "settings.json"])
def test_damaged_results_are_refused_or_summarised(
    name: str, share: int, results: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    written = (folder / name).read_text()
    first, *rest = written.splitlines()
    is_line = name.endswith("jsonl")
    reader = Reader(
        folder / name, (name, str(folder)), lambda: summarise(Folder(folder)).summary,
        lambda summary, damage: json.dumps(summary, allow_nan=False).encode(),
        lambda part: b"\n".join([first.encode(), part, rest[1].encode(), b""]) if is_line else part,
    )  # fmt: skip
    reader.fuzz(damages(json.loads(rest[0] if is_line else written)), 150 * share)
    assert reader.counts["refused"] > 5
