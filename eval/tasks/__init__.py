"""Tasks: where questions come from and how answers are scored."""

from eval.tasks.base import Example, GeneratedTask, Task, Turn
from eval.tasks.equations import Equations
from eval.tasks.gsm8k import Gsm8k
from eval.tasks.lists import ListTask
from eval.tasks.puzzles import LatinSquare, Sudoku4
from eval.tasks.vocabulary import build_tokenizer, vocabulary
from eval.tasks.word_problems import WordProblems

__all__ = [
    "Equations",
    "Example",
    "GeneratedTask",
    "Gsm8k",
    "LatinSquare",
    "ListTask",
    "Sudoku4",
    "Task",
    "Turn",
    "WordProblems",
    "build_tokenizer",
    "vocabulary",
]
