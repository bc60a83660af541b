"""The words of the embedded models: one token for every word that a generated task can use."""

from typing import TYPE_CHECKING

from eval.tasks.lists import ITEMS, MAX_SUM, OUTPUTS
from eval.tasks.puzzles import BLANK, ROW_END
from eval.tasks.word_problem_templates import (
    HELD_OUT_NAMES,
    HELD_OUT_OBJECTS,
    NAMES,
    OBJECTS,
    TEMPLATES,
    words,
)

if TYPE_CHECKING:
    from dllm_decode.training.tokenizer import WordTokenizer

END_OF_TEXT = "<|endoftext|>"
MASK = "<|mdm_mask|>"
START_OF_TEXT = "<|startoftext|>"
UNKNOWN = "<|unknown|>"
SPECIAL_TOKENS = (END_OF_TEXT, MASK, START_OF_TEXT, UNKNOWN)

MARKS = (*words('. ? , : + - * / = #### [ ] "'), ROW_END, BLANK)
ANSWER_MARKER = "answer :"
MULTIPLE = 8

CHAT_TEMPLATE = (
    "{% for turn in messages %}"
    "{{ turn['content'] }}{% if turn['role'] == 'user' %} "
    + ANSWER_MARKER
    + "{% else %} "
    + END_OF_TEXT
    + "{% endif %}"
    "{% if not loop.last %} {% endif %}"
    "{% endfor %}"
)
"""A user turn ends with the answer marker, an assistant turn with end-of-text.

The marker belongs to the question, so that a prompt is the same with and without
`add_generation_prompt`.
"""


def vocabulary(max_number: int = 200) -> tuple[str, ...]:
    """Returns the words in the order of their ids; their number is a multiple of 8.

    Order: special tokens (end-of-text is id 0, mask is id 1), marks, whole numbers from 0, words in
    alphabetical order, reserved words.

    Args:
        max_number: Greatest whole number with a token, at least 200, which `pair_sum` needs.

    Raises:
        ValueError: If `max_number` is below 200.
    """
    if max_number < MAX_SUM:
        raise ValueError(f"max_number must be at least {MAX_SUM}, got {max_number}.")
    used_words = {*NAMES, *HELD_OUT_NAMES, *OBJECTS, *HELD_OUT_OBJECTS, *ITEMS, *OUTPUTS}
    used_words |= {"latin", "sudoku4", ANSWER_MARKER.split()[0]}
    used_words |= {word for template in TEMPLATES for word in template.words()}
    numbers = (str(number) for number in range(max_number + 1))
    used = (*SPECIAL_TOKENS, *MARKS, *numbers, *sorted(used_words))
    num_reserved = -len(used) % MULTIPLE
    return (*used, *(f"<|reserved_{i}|>" for i in range(num_reserved)))


def build_tokenizer(max_number: int = 200) -> "WordTokenizer":
    """Returns the word-level tokenizer of the embedded models.

    End-of-text is also the padding token. The chat template writes a question followed by
    `answer :`. Words without a token become `<|unknown|>`; no generated task has any.

    Args:
        max_number: Greatest whole number with a token, at least 200.
    """
    # Here, so that using a task does not wait for the training code.
    from dllm_decode.training.tokenizer import word_tokenizer

    return word_tokenizer(
        vocabulary(max_number),
        eos=END_OF_TEXT,
        mask=MASK,
        start=START_OF_TEXT,
        unknown=UNKNOWN,
        chat_template=CHAT_TEMPLATE,
    )
