"""Tasks: where questions come from and how answers are scored."""

from eval.tasks.base import Example, GeneratedTask, SampledTask, Task, Turn
from eval.tasks.gsm8k import Gsm8k
from eval.tasks.ledgers import Ledgers
from eval.tasks.lists import ListTask
from eval.tasks.parallelbench import ParallelBench
from eval.tasks.problem_files import FileTask
from eval.tasks.word_problems import WordProblems

__all__ = [
    "Example",
    "FileTask",
    "GeneratedTask",
    "Gsm8k",
    "Ledgers",
    "ListTask",
    "ParallelBench",
    "SampledTask",
    "Task",
    "Turn",
    "WordProblems",
]
