import pytest

from examples.speculative import main


@pytest.mark.parametrize(
    "options",
    [
        ["--task", "word_problems?limit=1"],
        pytest.param(
            ["--task", "ledgers?limit=1", "--model", "mini-long", "--target", "mini-long-ar"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_example_shows_that_the_texts_are_the_same_in_fewer_forwards(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(options)
    shown = capsys.readouterr().out
    assert "SelfVerify: 1 of 1 texts equal one token a forward" in shown
    assert "SelfVerify, tree: 1 of 1 texts equal one token a forward" in shown
    assert "ARVerify: 1 of 1 texts equal the target alone" in shown
    assert "ARVerify, 4 looks: 1 of 1 texts equal the target alone" in shown


@pytest.mark.parametrize("option", ["--batch-size", "--gen-length", "--block-length"])
def test_a_length_of_0_is_refused(option: str) -> None:
    """A length of 0 was taken as none, and a batch of 0 rows ended in an error of `range`."""
    with pytest.raises(SystemExit, match=f": {option} must be at least 1, got 0\\."):
        main([option, "0"])
