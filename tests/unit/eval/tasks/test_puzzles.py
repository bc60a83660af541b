"""Latin squares and small sudokus."""

import random
from itertools import product

import pytest

from eval.tasks.puzzles import LatinSquare, Sudoku4, latin_squares, num_solutions, sudoku_grids

PUZZLES = [LatinSquare(3), LatinSquare(4), Sudoku4(), Sudoku4(9, 12)]


def test_there_are_as_many_grids_as_known() -> None:
    assert len(set(latin_squares(3))) == 12
    assert len(set(latin_squares(4))) == 576
    assert len(set(sudoku_grids())) == 288
    grid = sudoku_grids()[0]
    assert num_solutions(grid, frozenset()) == 1
    assert num_solutions(grid, frozenset(range(16))) == 288
    assert num_solutions(grid, frozenset(range(1, 16))) == 72


@pytest.mark.parametrize("task", PUZZLES, ids=repr)
def test_references_score_one_and_corrupted_references_zero(task: LatinSquare | Sudoku4) -> None:
    for split in task.splits:
        for example in task.examples(split, 6):
            assert set(task.score(example, example.target).values()) == {1.0}
            words = example.target.split()
            cells = [i for i, word in enumerate(words) if word != "|"]
            for i in cells:
                other = next(words[j] for j in cells if words[j] != words[i])
                wrong = " ".join([*words[:i], other, *words[i + 1 :]])
                assert task.score(example, wrong)["answer"] == 0.0
            for wrong in ("", words[0], " ".join(words[:-1]), f"{example.target} {words[0]}"):
                assert task.score(example, wrong)["answer"] == 0.0
            assert len(words) < task.gen_length


def test_every_latin_square_is_accepted_and_drawn() -> None:
    task = LatinSquare(3)
    rng = random.Random(0)
    squares = set()
    for _ in range(150):
        example = task.draw(rng)
        assert task.score(example, example.target)["answer"] == 1.0
        symbols = example.meta["symbols"]
        squares.add(tuple(symbols.index(word) for word in example.target.split() if word != "|"))
    assert len(squares) == 12


@pytest.mark.parametrize("task", [Sudoku4(), Sudoku4(9, 12)], ids=repr)
def test_puzzles_have_exactly_one_solution(task: Sudoku4) -> None:
    for example in task.examples("test", 40):
        rows = [row.split() for row in example.prompt.split(" : ")[1].split(" | ")]
        clues = {(i, j): rows[i][j] for i, j in product(range(4), repeat=2) if rows[i][j] != "_"}
        fitting = [
            grid
            for grid in sudoku_grids()
            if all(str(grid[i][j]) == v for (i, j), v in clues.items())
        ]
        assert fitting == [example.meta["solution"]]
        assert task.min_blanks <= 16 - len(clues) <= task.max_blanks


def test_wrong_cells_lower_the_share_of_cells() -> None:
    task = Sudoku4(4, 4)
    example = task.examples("test", 1)[0]
    words = example.target.split()
    blank = sorted(example.meta["blanks"])[0]
    place = blank + blank // 4
    words[place] = "1" if words[place] != "1" else "2"
    assert task.score(example, " ".join(words)) == {"answer": 0.0, "cells": 0.75}
