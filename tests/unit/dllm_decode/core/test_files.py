"""New files replace earlier ones together, or not at all."""

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from dllm_decode.core import files
from dllm_decode.core.files import append_text, finish_files, new_file, new_files, write_text


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / name).write_text(text)


def test_a_file_appears_when_it_is_complete_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a"
    for text in ("first", "second"):
        with new_file(path) as partial:
            partial.write_text(text)
            assert path.exists() == (text == "second")
        assert contents(path.parent) == {"a": text}
    with pytest.raises(OSError, match="No such file"), new_file(path) as partial:
        write(partial.parent, **{partial.name: "third", "none/none": ""})
    assert contents(path.parent) == {"a": "second"}


def test_new_files_replace_those_of_the_earlier_owner_alone(tmp_path: Path) -> None:
    write(tmp_path, a="old", b="old", c="of somebody else")
    with new_files(tmp_path, ["a", "b", "gone"]) as partial:
        write(partial, a="new", d="new")
        assert (tmp_path / "a").read_text() == "old"
    assert contents(tmp_path) == {"a": "new", "c": "of somebody else", "d": "new"}


def test_a_file_of_somebody_else_is_not_replaced(tmp_path: Path) -> None:
    write(tmp_path, a="old", c="of somebody else")
    with (
        pytest.raises(ValueError, match="must have no c of somebody else, got one"),
        new_files(tmp_path, ["a"]) as partial,
    ):
        write(partial, a="new", c="new")
    assert contents(tmp_path) == {"a": "old", "c": "of somebody else"}


@pytest.mark.parametrize("step", [(os, "mkdir"), (os, "fsync"), (Path, "rename")])
def test_an_error_of_the_disk_leaves_the_earlier_files_and_is_one_sentence(
    step: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    write(tmp_path, a="old", b="old")
    monkeypatch.setattr(*step, fail)
    with (
        pytest.raises(OSError, match=r"room .*, got: No space left on device\. Its earlier cont"),
        new_files(tmp_path, ["a", "b"]) as partial,
    ):
        write(partial, a="new")
    monkeypatch.undo()
    assert contents(tmp_path) == {"a": "old", "b": "old"}
    new = tmp_path / "new"
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="got: No space left"), new_files(new) as partial:
        write(partial, a="new")
    assert not new.exists()


def test_a_folder_in_the_place_of_a_file_is_one_sentence(tmp_path: Path) -> None:
    write(tmp_path, a="a file")
    with pytest.raises(OSError, match=r"/a' must be .* got: Not a directory"):
        new_files(tmp_path / "a").__enter__()
    with pytest.raises(OSError, match=r"/a/b' must be .* got: (Not a directory|File exists)"):
        new_file(tmp_path / "a" / "b").__enter__()
    assert contents(tmp_path) == {"a": "a file"}


@pytest.mark.parametrize("num_moved", range(4))
def test_a_process_that_is_killed_while_it_moves_files_leaves_work_that_can_be_ended(
    num_moved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each move is one call of `Path.replace`; the kill comes before the next one."""
    write(tmp_path, a="old", b="old", c="old", e="of somebody else")
    left, move = num_moved, Path.replace

    def replace(self: Path, target: Path) -> Path:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        return move(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(files.shutil, "rmtree", lambda *args, **kwargs: None)
    try:
        with new_files(tmp_path, "abc") as partial:
            write(partial, a="new", b="new", d="new")
    except KeyboardInterrupt:
        assert num_moved < 3
    monkeypatch.undo()
    finish_files(tmp_path)
    assert contents(tmp_path) == {"a": "new", "b": "new", "d": "new", "e": "of somebody else"}
    with new_files(tmp_path, "abd") as partial:
        write(partial, a="newer")
    assert contents(tmp_path) == {"a": "newer", "e": "of somebody else"}


def test_files_that_a_killed_process_left_unfinished_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".partial-1").mkdir()
    write(tmp_path / ".partial-1", z="half a file")
    with new_files(tmp_path) as partial:
        write(partial, a="new")
    assert contents(tmp_path) == {"a": "new"}


def test_two_writers_mix_no_files(tmp_path: Path) -> None:
    write(tmp_path, a="old", b="old")
    first = new_files(tmp_path, "ab")
    late = first.__enter__()
    write(late, a="first")
    with new_files(tmp_path, "ab") as partial:
        write(partial, a="second", b="second")
    with pytest.raises(OSError, match="No such file"):
        first.__exit__(None, None, None)
    assert contents(tmp_path) == {"a": "second", "b": "second"}


def test_a_link_keeps_its_place_and_a_device_is_refused(tmp_path: Path) -> None:
    """Writing an answer to /dev/null would have replaced the device."""
    write(tmp_path, a="old")
    (tmp_path / "link").symlink_to("a")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_text() == "new"
    with pytest.raises(OSError, match="got: it is no file"):
        write_text(Path(os.devnull), "new")


def test_lines_without_room_are_not_appended_in_part(tmp_path: Path) -> None:
    path = tmp_path / "a"
    append_text(path, "first\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match="with room for the new contents, got: File too large"):
            append_text(path, "second\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_text() == "first\n"
