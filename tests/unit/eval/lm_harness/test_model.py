"""The adapter for the evaluation harness: its own requests, and whole evaluations offline."""

import json
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from eval_runs import CountedModel, TokenIds, write_tasks
from toys import HashModel

from dllm_decode import DecodeConfig, MaskPredictor, NoCache, NoVerifier, decode, load_model
from dllm_decode.blocks import MultiBlock, Sequential
from dllm_decode.settings.models import open_model
from eval.commands import evaluate as main
from eval.commands import make_eval_parser
from eval.lm_harness import command as lm_command
from eval.lm_harness.answer_costs import records_of
from eval.lm_harness.likelihood import LeftToRight, MonteCarlo
from eval.lm_harness.settings import LmSettings, settings_of
from eval.oracle.joint import Joint
from eval.oracle.oracle import OracleModel
from samplers import AcceptAndRenoise, ConfidenceThreshold, FixedSchedule, Sampler

ROOT = Path(__file__).parents[4]

lm_eval = pytest.importorskip("lm_eval", reason="needs the extra lm-eval")

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from eval.lm_harness.model import DecodeLM  # noqa: E402 - not before it is known that lm-eval is there


@pytest.fixture(autouse=True)
def _without_a_report_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness asks a dozen programs about the machine after each evaluation."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)


class Numbers(TokenIds):
    """A tokenizer whose texts are token ids."""

    bos_token_id = None
    name_or_path = "toys/numbers"
    all_special_ids: ClassVar[list[int]] = []


SETTINGS = ("sampler", "blocks", "estimator", "batch_size", "gen_length", "temperature")


def make_lm(model: MaskPredictor | None = None, **changes: Any) -> DecodeLM:
    """Returns an adapter; changes are of its settings, or options of the decode."""
    options = {"gen_length": 8, "block_length": 4, **changes}
    chosen = {name: options.pop(name) for name in SETTINGS if name in options}
    settings = LmSettings(
        model="toy", revision=None, dtype="float64", cache=NoCache(), verifier=NoVerifier(),
        config=DecodeConfig(**options),
        **{"sampler": FixedSchedule(2), "estimator": LeftToRight(), "batch_size": 3,
           "blocks": Sequential(), **chosen},
    )  # fmt: skip
    return DecodeLM(model or HashModel(), Numbers(), settings)


def asked(text: str, doc_id: int = 0, repeats: int = 1, **options: Any) -> Instance:
    return Instance("generate_until", {}, (text, options), 0, ("toy", doc_id, repeats))


def scored(context: str, continuation: str, doc_id: int = 0, idx: int = 0) -> Instance:
    return Instance("loglikelihood", {}, (context, continuation), idx, ("toy", doc_id, 1))


def test_answers_are_those_of_decode_whatever_shares_their_batch() -> None:
    lm = make_lm()
    prompts = [[1], [5, 2, 9], [7, 7], [3, 1, 4, 1, 5], [2], [8, 8, 8], [11]]
    longer = {"gen_length": 12}
    pairs = list(zip(prompts, [{}, {}, longer, {}, longer, {}, {}], strict=True))
    requests = [
        asked(" ".join(map(str, prompt)), i, **options) for i, (prompt, options) in enumerate(pairs)
    ]
    texts = lm.generate_until(requests, disable_tqdm=True)
    assert len({*texts}) == 7
    records = {record["doc_id"]: record for record in records_of(lm.ledger)}
    for i, (prompt, options) in enumerate(pairs):
        length = options.get("gen_length", 8)
        alone = decode(HashModel(), [prompt], FixedSchedule(2), gen_length=length, block_length=4)
        assert [int(word) for word in texts[i].split()] == alone.answers()[0]
        recorded = [records[i][name] for name in ("prompt_length", "gen_length", "nfe")]
        assert recorded == [len(prompt), length, int(alone.nfe[0])]
    # Five of length 8 in batches of three, two of length 12.
    assert Counter(record["batch_length"] for record in records.values()) == {3: 3, 2: 4}


def test_stop_strings_are_cut_and_save_no_forwards() -> None:
    lm = make_lm()
    words = lm.generate_until([asked("5 2 9")], disable_tqdm=True)[0].split()
    assert len(words) > 1
    cut = lm.generate_until([asked("5 2 9", 1, until=[f" {words[-1]}"])], disable_tqdm=True)
    assert cut == [" ".join(words[:-1])]
    first, second = records_of(lm.ledger)
    assert first["length"] == second["length"] > len(words) - 1
    assert first["nfe"] == second["nfe"]


def test_requests_that_are_repeated_are_decoded_once_and_repeats_as_often_as_wanted() -> None:
    model = CountedModel()
    lm = make_lm(model, temperature=1.0, batch_size=1)
    once, twice = asked("1", 0), asked("2", 1, repeats=2)
    texts = lm.generate_until([once, twice, twice, twice, twice, once], disable_tqdm=True)
    assert texts[0] == texts[5]
    assert texts[1] != texts[2]
    assert texts[1:3] == texts[3:5]
    keys = [(record["doc_id"], record["repeat"]) for record in records_of(lm.ledger)]
    assert keys == [(0, 0), (1, 0), (1, 1)]
    assert model.num_forwards == sum(record["nfe"] for record in records_of(lm.ledger))


def test_noise_depends_on_the_seed_and_the_request_alone() -> None:
    requests = [asked("4 4", i) for i in range(4)]
    first, again, other = (
        make_lm(temperature=1.0, seed=seed, batch_size=1).generate_until(part, disable_tqdm=True)
        for seed, part in ((0, requests), (0, requests[::-1]), (1, requests))
    )
    assert first == again[::-1]
    assert len({*first, *other}) == 8


def test_likelihoods_of_an_exact_model_are_exact() -> None:
    joint = Joint({(0, 1, 2): Fraction(1, 2), (1, 0, 2): Fraction(1, 3), (2, 2, 2): Fraction(1, 6)})
    model = OracleModel(joint, noise=0.0)
    lm = make_lm(model, batch_size=2)
    context, *answers = (" ".join(map(str, tokens)) for tokens in (model.prompt(0), *joint.answers))
    requests = [scored(context, f" {answer}", idx=i) for i, answer in enumerate(answers)]
    scores = lm.loglikelihood(requests, disable_tqdm=True)
    expected = [float(p) for p in joint.answers.values()]
    assert torch.tensor([log for log, _ in scores]).exp().tolist() == pytest.approx(expected)
    assert [greedy for _, greedy in scores] == [True, False, False]
    tokens = [(("", ""), model.prompt(0), list(answer)) for answer in joint.answers]
    assert lm._loglikelihood_tokens(tokens) == scores


def test_accuracies_that_need_to_know_what_is_greedy_are_warned_of() -> None:
    lm = make_lm(estimator=MonteCarlo(4))
    choices = [scored("1", " 2 3", idx=0), scored("1", " 3 2", idx=1)]
    lm.loglikelihood(choices, disable_tqdm=True)
    with pytest.warns(UserWarning, match="'is_greedy' is False in toy. Use --nll l2r"):
        lm.loglikelihood([*choices, scored("1", " 2 3", doc_id=1)], disable_tqdm=True)


def test_the_model_s_facts() -> None:
    lm = make_lm()
    assert (lm.eot_token_id, lm.prefix_token_id, lm.tokenizer_name) == (22, 22, "toys__numbers")
    assert lm.tok_encode("1 2") == [1, 2]
    assert lm.chat_template(True) is None
    with pytest.raises(ValueError, match="needs a tokenizer with a chat template"):
        lm.apply_chat_template([{"role": "user", "content": "1"}])
    with pytest.raises(ValueError, match="Choose tasks of type loglikelihood, multiple_choice or"):
        lm.loglikelihood_rolling([])


class Words(Numbers):
    """A tokenizer that begins every text with token 9, and whose template begins with no token."""

    chat_template = "template"
    bos_token_id = 9
    all_special_ids: ClassVar[list[int]] = [9]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [9] * add_special_tokens + super().encode(text)

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        return " ".join(turn["content"] for turn in conversation)


def test_special_tokens_begin_a_prompt_once_and_none_is_added_to_a_chat() -> None:
    """Also if the template begins with no special token, so that its text looks like any other."""
    lm = make_lm()
    lm.tokenizer = Words()
    assert lm.prefix_token_id == 9
    assert [lm.tok_encode(text) for text in ("1 2", "9 1 2", "")] == [[9, 1, 2], [9, 1, 2], [9]]
    assert lm._encode_pair("1  ", "2") == ([9, 1], [2])
    text = lm.apply_chat_template([{"role": "user", "content": "1 2"}])
    assert lm.tok_encode(text) == [1, 2]
    assert lm._encode_pair(text, " 3") == ([1, 2], [3])


def evaluate(lm: DecodeLM, folder: Path, *tasks: str, **options: Any) -> dict[str, Any]:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    results: dict[str, Any] = simple_evaluate(
        model=lm, tasks=list(tasks), task_manager=manager, bootstrap_iters=0, **options
    )
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


def mini(*words: str) -> DecodeLM:
    """Returns the adapter that the command makes from its options."""
    line = ["lm", "--tasks", "any", "--gen-length", "64", "--dtype", "float32", *words]
    options = make_eval_parser().parse_args(line)
    loaded = open_model(options.model, options)
    return DecodeLM(loaded.model, loaded.tokenizer, settings_of(options, loaded))


@pytest.mark.parametrize(
    ("model", "sampler"),
    [("mini", ConfidenceThreshold(0.9)), ("mini-uniform", AcceptAndRenoise())],
)
def test_the_default_sampler_is_the_one_that_the_help_names(model: str, sampler: Sampler) -> None:
    """On a uniform-state model it was ConfidenceThreshold, too."""
    options = make_eval_parser().parse_args(["lm", "--tasks", "any", "--model", model])
    assert settings_of(options, open_model(model, options)).sampler == sampler


def test_it_runs_offline(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = [
        "lm", "--tasks", "words_generate,words_choose,words_score", "--include-path", str(folder),
        "--output", str(out), "--sampler", "FixedSchedule(16)", "--gen-length", "64", "--nll",
        "l2r", "--limit", "2", "--batch-size", "4", "--dtype", "float32",
        "--use-cache", str(tmp_path / "kept"),
    ]  # fmt: skip
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "words_generate" in shown
    assert "tokens_per_forward" in shown
    results = json.loads((out / "results.json").read_text())
    model, tokenizer = load_model("mini", dtype=torch.float32)
    docs = lines_of(folder / "problems.jsonl")[:2]
    prompts = [tokenizer.encode(f"{doc['question']} answer :") for doc in docs]
    outputs = [decode(model, [prompt], FixedSchedule(16), gen_length=64) for prompt in prompts]
    texts = [tokenizer.decode(out.answers()[0], skip_special_tokens=True) for out in outputs]
    numbers = [re.findall(r"#### (\d+)", text)[:1] for text in texts]
    num_right = sum(found == [doc["number"]] for found, doc in zip(numbers, docs, strict=True))
    assert results["results"]["words_generate"]["exact_match,strict"] == num_right / 2
    assert results["results"]["words_choose"]["acc,none"] == 1.0
    # Greedy solutions are found by the chain rule.
    assert results["results"]["words_score"]["acc,none"] > 0.3
    samples = lines_of(out / "samples_words_generate.jsonl")
    assert [sample["resps"] for sample in samples] == [[[text]] for text in texts]
    cost = lines_of(out / "cost.jsonl")
    keys = [(line["task"], line["doc_id"], line["idx"]) for line in cost]
    assert keys == [("words_generate", doc, 0) for doc in range(2)]
    nfe = [int(output.nfe[0]) for output in outputs]
    assert [line["nfe"] for line in cost] == nfe
    total = sum(line["length"] for line in cost) / sum(nfe)
    config = results["config"]
    assert config["cost"]["tokens_per_forward"] == total
    assert config["decoding"]["sampler"] == repr(FixedSchedule(16))
    assert config["decoding"]["estimator"] == "LeftToRight()"
    assert list(tmp_path.glob(f"kept-{config['decoding']['fingerprint']}*"))
    assert main(command) == 2
    assert "holds results already" in capsys.readouterr().err


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_model_s_own_template_is_applied_once(folder: Path) -> None:
    """The template of mini adds what the task's text has already."""
    lm = mini()
    results = evaluate(lm, folder, "words_generate", limit=2, apply_chat_template=True)
    prompts = [sample["arguments"][0][0] for sample in results["samples"]["words_generate"]]
    assert [prompt.count("answer :") for prompt in prompts] == [2, 2]
    lengths = [len(lm.tokenizer.encode(prompt)) for prompt in prompts]
    assert [record["prompt_length"] for record in records_of(lm.ledger)] == lengths


def test_a_response_cache_has_a_file_for_each_setting(folder: Path, tmp_path: Path) -> None:
    command = ["lm", "--tasks", "words_generate", "--include-path", str(folder), "--limit", "1",
               "--gen-length", "8", "--use-cache", str(tmp_path / "kept")]  # fmt: skip
    for words, num_files in ((["--seed", "1"], 1), (["--seed", "1"], 1), (["--seed", "2"], 2)):
        assert main([*command, *words]) == 0
        assert len(list(tmp_path.glob("kept-*.db"))) == num_files


def test_a_block_schedule_decides_what_is_open() -> None:
    outcomes = []
    for blocks in (Sequential(), MultiBlock(4)):
        lm = make_lm(sampler=ConfidenceThreshold(0.2), blocks=blocks)
        lm.generate_until([asked("1 2 3")], disable_tqdm=True)
        assert lm.get_model_info()["decoding"]["blocks"] == repr(blocks)
        outcomes.append((records_of(lm.ledger)[0]["nfe"], lm.settings.fingerprint()))
    assert len({nfe for nfe, _ in outcomes}) == len({name for _, name in outcomes}) == 2
    with pytest.raises(ValueError, match="opens all masks of a block at once"):
        make_lm(blocks=MultiBlock(4)).generate_until([asked("1")])


def test_a_folder_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lm", "--tasks", "words_generate", "--include-path", "nowhere"]) == 2
    assert "must be a folder with task files, got 'nowhere'" in capsys.readouterr().err


def test_a_task_that_runs_programs_needs_consent(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = (folder / "words_generate.yaml").read_text().replace("words_generate", "words_unsafe")
    (tmp_path / "words_unsafe.yaml").write_text(f"{task}unsafe_code: true\n")
    command = ["lm", "--tasks", "words_unsafe", "--include-path", str(tmp_path), "--limit", "1",
               "--gen-length", "8"]  # fmt: skip
    assert main(command) == 2
    assert "Set confirm_run_unsafe_code=True" in capsys.readouterr().err
    assert main([*command, "--confirm-run-unsafe-code"]) == 0


@pytest.mark.slow
def test_unknown_tasks_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Slow, because the harness lists all of its own tasks first."""
    assert main(["lm", "--include-path", str(folder), "--tasks", "words_choose,nothing"]) == 2
    assert "Tasks must be known to the harness, got nothing." in capsys.readouterr().err


def test_without_the_harness_the_command_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lm_command, "find_spec", lambda name: None)
    assert main(["lm", "--tasks", "gsm8k"]) == 2
    assert 'pip install ".[lm-eval]"' in capsys.readouterr().err


def test_nothing_but_the_adapter_imports_the_harness() -> None:
    for path in (ROOT / "eval").rglob("*.py"):
        imported = re.search(r"^(from|import) lm_eval\b", path.read_text(encoding="utf-8"), re.M)
        assert not imported or path.name in ("model.py", "lm_jobs.py"), path
