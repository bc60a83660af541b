import pytest

from benchmarks.many import main


@pytest.mark.slow
def test_rows_that_join_save_calls_and_change_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--limit", "12", "--num-rows", "3", "--cache", "NoCache()", "--cache", "DualCache()"])
    lines = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    found = [[cell.strip().replace(",", "") for cell in line] for line in lines]
    assert [line[:3] for line in found] == [
        [cache, "3", how]
        for cache in ("NoCache()", "DualCache()")
        for how in ("batches one after the other", "decode_many")
    ]
    for batches, many in (found[:2], found[2:]):
        assert int(many[3]) < int(batches[3])
        assert int(many[4]) < 1.15 * int(batches[4])
        assert many[6] == batches[6] == "12"
