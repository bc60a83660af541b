"""The ranks of the processes of a launch."""

import pytest

from dllm_decode.settings.ranks import ProcessRank


@pytest.mark.parametrize(
    ("rank", "size", "message"),
    [
        ("1", None, "below the number of processes, got rank 1 of 1"),
        ("2", "2", "below the number of processes, got rank 2 of 2"),
        (None, "8", "RANK must be set too, got 8 processes without one"),
        ("-1", "2", "RANK must be a whole number, got '-1'."),
        ("0", "two", "WORLD_SIZE must be a whole number, got 'two'."),
        ("", "2", "RANK must be a whole number, got ''."),
    ],
)
def test_a_rank_outside_its_world_is_refused(
    rank: str | None, size: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the examples were decoded, and no report was written."""
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        ProcessRank.of_launch()
