"""Latin squares and four-by-four sudokus, one word a cell."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from eval.tasks.base import MAX_DRAWS, Example, GeneratedTask, SampledTask, split_of
from eval.tasks.lists import words_of_lists

Grid = tuple[tuple[int, ...], ...]

ROW_END = "|"
BLANK = "_"


@dataclass(frozen=True)
class LatinSquare(GeneratedTask):
    """A square with each symbol once in every row and column: `latin 3 : [ leo keys olga ]`.

    The answer is `leo keys olga | keys olga leo | olga leo keys`, drawn uniformly from all squares:
    12 of order 3, 576 of order 4. Splits are disjoint in the symbols and their order.

    Attributes:
        order: Side of the square, 3 or 4.
    """

    order: int = 4

    version = 1
    primary = "answer"
    gen_length = 24

    def __post_init__(self) -> None:
        if self.order not in (3, 4):
            raise ValueError(f"order is 3 or 4, got {self.order}.")

    @property
    def name(self) -> str:
        return f"puzzles/latin{self.order}"

    def draw(self, rng: random.Random, split: str = "train") -> Example:
        """Draws symbols of a split and a square over them, uniformly."""
        self.require(split, None)
        for _ in range(MAX_DRAWS):
            symbols = tuple(rng.sample(words_of_lists(), self.order))
            prompt = f"latin {self.order} : [ {' '.join(symbols)} ]"
            if split_of(prompt) == split:
                grid = rng.choice(latin_squares(self.order))
                rows = [" ".join(symbols[cell] for cell in row) for row in grid]
                return Example(prompt, f" {ROW_END} ".join(rows), {"symbols": symbols})
        raise self.none_found(split, "choose another seed")

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer.

        `answer` (primary): the rows, separated by `|` or line breaks, are a Latin square over the
        symbols of the prompt.
        """
        return {"answer": float(is_latin(parse_rows(text), example.meta["symbols"]))}


@dataclass(frozen=True)
class Sudoku4(SampledTask):
    """A four-by-four sudoku with exactly one solution: `sudoku4 : 1 _ 3 4 | 3 4 _ 2 | ...`.

    The answer is the full grid in the same form. Splits are disjoint in the puzzle.

    Attributes:
        min_blanks: Least number of blank cells.
        max_blanks: Greatest number of blank cells, at most 12: fewer than four givens never
            determine a grid.
    """

    min_blanks: int = 4
    max_blanks: int = 8

    name = "puzzles/sudoku4"
    version = 1
    primary = "answer"
    gen_length = 24

    def __post_init__(self) -> None:
        if not 1 <= self.min_blanks <= self.max_blanks <= 12:
            raise ValueError(
                "blanks satisfy 1 <= min_blanks <= max_blanks <= 12, got "
                f"{self.min_blanks} and {self.max_blanks}."
            )

    def sample(self, rng: random.Random) -> Example:
        """Draws a puzzle with exactly one solution."""
        for _ in range(MAX_DRAWS):
            solution = rng.choice(sudoku_grids())
            num_blanks = rng.randint(self.min_blanks, self.max_blanks)
            blanks = frozenset(rng.sample(range(16), num_blanks))
            if num_solutions(solution, blanks) == 1:
                prompt = f"sudoku4 : {written(solution, blanks)}"
                meta = {"solution": solution, "blanks": blanks}
                return Example(prompt, written(solution, frozenset()), meta)
        raise ValueError(
            f"{self!r} must have puzzles with one solution, got none in {MAX_DRAWS} draws; use "
            "fewer blanks."
        )

    def score(self, example: Example, text: str) -> Mapping[str, float | None]:
        """Scores an answer.

        `answer` (primary): the grid is the solution. `cells`: share of the blank cells that are
        right, 0 if the text is no four-by-four grid.
        """
        solution: Grid = example.meta["solution"]
        blanks: frozenset[int] = example.meta["blanks"]
        rows = parse_rows(text)
        if [len(row) for row in rows] != [4, 4, 4, 4]:
            return {"answer": 0.0, "cells": 0.0}
        right = sum(rows[i // 4][i % 4] == str(solution[i // 4][i % 4]) for i in blanks)
        solved = rows == [tuple(str(cell) for cell in row) for row in solution]
        return {"answer": float(solved), "cells": right / len(blanks)}


@cache
def latin_squares(order: int) -> tuple[Grid, ...]:
    """Returns every Latin square over 0, ..., order - 1, in lexicographic order."""
    rows = tuple(permutations(range(order)))

    def completions(grid: Grid) -> Iterator[Grid]:
        if len(grid) == order:
            yield grid
            return
        for row in rows:
            if all(a != b for above in grid for a, b in zip(above, row, strict=True)):
                yield from completions((*grid, row))

    return tuple(completions(()))


def is_latin(rows: Sequence[Sequence[str]], symbols: Sequence[str]) -> bool:
    """Says whether every row and every column holds each symbol once."""
    wanted = sorted(symbols)
    is_square = [len(row) for row in rows] == [len(wanted)] * len(wanted)
    return is_square and all(sorted(line) == wanted for line in (*rows, *zip(*rows, strict=True)))


@cache
def sudoku_grids() -> tuple[Grid, ...]:
    """Returns all 288 solved four-by-four sudokus over 1, ..., 4."""
    squares = (tuple(tuple(cell + 1 for cell in row) for row in s) for s in latin_squares(4))
    corners = [(top, left) for top in (0, 2) for left in (0, 2)]

    def box(grid: Grid, top: int, left: int) -> set[int]:
        return {*grid[top][left : left + 2], *grid[top + 1][left : left + 2]}

    return tuple(g for g in squares if all(len(box(g, *corner)) == 4 for corner in corners))


@cache
def sudoku_cells() -> NDArray[np.int64]:
    """Returns the solved sudokus, 288 rows of 16 cells."""
    return np.array(sudoku_grids()).reshape(-1, 16)


def num_solutions(grid: Grid, blanks: frozenset[int]) -> int:
    """Returns how many solved grids agree with a grid outside the blanks (0 to 15, row by row)."""
    givens = [i for i in range(16) if i not in blanks]
    agrees = sudoku_cells()[:, givens] == np.array(grid).reshape(16)[givens]
    return int(agrees.all(axis=1).sum())


def written(grid: Grid, blanks: frozenset[int]) -> str:
    """Writes a grid as words, blank cells as `_`."""
    cells = [BLANK if i in blanks else str(grid[i // 4][i % 4]) for i in range(16)]
    return f" {ROW_END} ".join(" ".join(cells[i : i + 4]) for i in range(0, 16, 4))


def parse_rows(text: str) -> list[tuple[str, ...]]:
    """Reads rows separated by `|` or line breaks; empty rows are dropped."""
    rows = (tuple(row.split()) for row in re.split(r"[|\n]", text))
    return [row for row in rows if row]
