import pytest

from benchmarks import rounding
from benchmarks.many import main


@pytest.mark.slow
def test_rows_that_join_save_calls_and_change_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--limit", "12", "--num-rows", "3", "--cache", "NoCache()", "DualCache()"])
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if "|" in line]
    found = [[cell.strip().replace(",", "") for cell in line] for line in lines[2:]]
    assert [line[:3] for line in found] == [
        [cache, "3", how]
        for cache in ("NoCache()", "DualCache()")
        for how in ("batches one after the other", "decode_many")
    ]
    for batches, many in (found[:2], found[2:]):
        assert int(many[3]) < int(batches[3])
        assert int(many[4]) < 1.15 * int(batches[4])
        assert many[6] == batches[6] == "12"


def test_layouts_that_are_equal_give_equal_answers_in_float64(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounding.main(["--limit", "2", "--temperature", "4", "--sampler", "FixedSchedule(8)"])
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "float" in line]
    assert [row[1] for row in rows] == ["float64", "float32", "bfloat16"]
    assert rows[0][3::2] == ["4", "0", "0", "0", "0"]
