"""Batches that are shared among actors, without Ray."""

import re
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

import eval_runs
import pytest

from eval.commands import evaluate
from eval.runs.crew import Actor, Decoded, shared
from eval.runs.folder import Folder
from eval.runs.records import Record
from eval.runs.runner import PendingBatch, Worker, execute


class LostError(Exception):
    pass


class Killed:
    """An actor that answers some batches, then is lost."""

    def __init__(self, num_left: int) -> None:
        self.num_left = num_left
        self.actor = Actor(eval_runs.runs, "a command")

    def decode(self, key: str, batch: PendingBatch) -> Future[Decoded]:
        found: Future[Decoded] = Future()
        if self.num_left:
            self.num_left -= 1
            found.set_result(self.actor.decode(key, batch))
        else:
            found.set_exception(LostError("It was killed."))
        return found


def lines_of(folder: Path) -> list[tuple[str, object, object]]:
    records = Folder(folder).records()
    return sorted((one["key"], one["tokens"], one["trace"]) for one in records)  # type: ignore[misc]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return execute(eval_runs.runs(), tmp_path_factory.mktemp("whole")).path


def run_on(actors: list[Killed], folder: Path) -> None:
    def decoded(worker: Worker, batches: Sequence[PendingBatch]) -> Iterator[list[Record]]:
        def start(actor: Killed, batch: PendingBatch) -> Future[Decoded]:
            return actor.decode(worker.settings_key, batch)

        for found in shared(batches, actors, start, (LostError,)):
            yield found.records

    execute(eval_runs.runs(), folder, decoded=decoded)


def test_examples_of_lost_actors_go_to_others(
    whole: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Six batches in two runs: two actors are lost before their second and their first one."""
    actors = [Killed(1), Killed(0), Killed(100)]
    run_on(actors, tmp_path)
    assert [actor.num_left > 0 for actor in actors] == [True]
    assert caplog.text.count("An actor is lost, its examples go to another: It was killed.") == 2
    assert lines_of(tmp_path) == lines_of(whole)


def test_records_are_kept_if_all_actors_are_lost(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"the same command goes on from there\. It was killed\."):
        run_on([Killed(1), Killed(1)], tmp_path)
    assert len(Folder(tmp_path).records()) == 8
    run_on([Killed(100)], tmp_path)
    assert lines_of(tmp_path) == lines_of(whole)


def test_an_actor_with_other_files_is_refused() -> None:
    with pytest.raises(ValueError, match="must find the same task files"):
        Actor(eval_runs.runs, "").decode("other", PendingBatch(0, frozenset(["0"])))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "auto"], "actors on 'cpu' or 'cuda'.*--device auto"),
        ([], r"pip install '\.\[ray\]'"),
    ],
)
def test_ray_is_refused_before_anything_is_decoded(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    out = tmp_path / "out"
    assert evaluate(["run", "lists/copy?n=3&limit=2", str(out), "--ray", *words]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not out.exists()
