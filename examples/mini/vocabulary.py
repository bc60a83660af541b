"""The tokenizers of the embedded models: one token for every word and number of their world."""

from collections.abc import Iterable
from functools import partial

from tokenizers import Regex, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from dllm_decode.training import Pair
from dllm_decode.training.tokenizer import WordTokenizer, word_tokenizer
from eval.tasks.grammar import cast, sentences
from eval.tasks.ledgers import months
from eval.tasks.lists import MAX_SUM, OUTPUTS
from eval.tasks.puzzles import BLANK, ROW_END
from eval.tasks.word_problem_templates import templates

END_OF_TEXT = "<|endoftext|>"
MASK = "<|mdm_mask|>"
START_OF_TEXT = "<|startoftext|>"
UNKNOWN = "<|unknown|>"
SPECIAL_TOKENS = (END_OF_TEXT, MASK, START_OF_TEXT, UNKNOWN)

MARKS = (*[".", "?", ",", ":", "+", "-", "*", "/", "=", "####", "[", "]", '"'], ROW_END, BLANK)
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

CONNECTIVES = sentences("ledgers", "answer")["gain"].wordings["so"]
"""What may follow the equation of a ledger's line."""

LEDGER_PIECES = r"####|\d+|[a-z]+|[^\sa-z\d]"
"""What a token of ledgers is: numbers, words, and punctuation even where no space precedes it."""

_tokenizer_of = partial(
    word_tokenizer,
    eos=END_OF_TEXT,
    mask=MASK,
    start=START_OF_TEXT,
    unknown=UNKNOWN,
    chat_template=CHAT_TEMPLATE,
)


def vocabulary(max_number: int = 200) -> tuple[str, ...]:
    """Returns the words of `mini` in the order of their ids; their number is a multiple of 8.

    Order: special tokens (end-of-text is id 0, mask is id 1), marks, whole numbers from 0, words in
    alphabetical order, reserved words.

    Args:
        max_number: Greatest whole number with a token, at least 200, which `pair_sum` needs.

    Raises:
        ValueError: If `max_number` is below 200.
    """
    if max_number < MAX_SUM:
        raise ValueError(f"max_number must be at least {MAX_SUM}, got {max_number}.")
    told = {word for template in templates().values() for word in template.words()}
    return ordered(MARKS, max_number, {*told, *OUTPUTS, "latin", "sudoku4"})


def ledger_vocabulary() -> tuple[str, ...]:
    """Returns the words of `mini-long` in the order of their ids, as `vocabulary` has it."""
    spoken = [*sentences("ledgers", "question").values(), *sentences("ledgers", "answer").values()]
    told = {word for sentence in spoken for word in sentence.words()}
    return ordered((*MARKS, ";", "!"), 200, {*told, *months()})


def ordered(marks: Iterable[str], max_number: int, words: set[str]) -> tuple[str, ...]:
    """Lists special tokens, marks, numbers, the words with those of the cast, reserved words."""
    spoken = {*words, ANSWER_MARKER.split()[0]}
    for kind in ("known", "held_out"):
        spoken.update(*cast(kind))
    numbers = (str(number) for number in range(max_number + 1))
    used = (*SPECIAL_TOKENS, *marks, *numbers, *sorted(spoken))
    return (*used, *(f"<|reserved_{i}|>" for i in range(-len(used) % MULTIPLE)))


def build_tokenizer(max_number: int = 200) -> WordTokenizer:
    """Returns the tokenizer of `mini` and `mini-ar`.

    End-of-text is also the padding token. The chat template writes a question followed by
    `answer :`. Words without a token become `<|unknown|>`; no generated task has any.

    Args:
        max_number: Greatest whole number with a token, at least 200.
    """
    return _tokenizer_of(vocabulary(max_number))


def build_ledger_tokenizer() -> WordTokenizer:
    """Returns the tokenizer of the models that answer `Ledgers`."""
    tokenizer = _tokenizer_of(ledger_vocabulary())
    split = pre_tokenizers.Split(Regex(LEDGER_PIECES), behavior="isolated")
    spaces = pre_tokenizers.WhitespaceSplit()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces, split])
    return tokenizer


class Encoder:
    """Looks words up; several times faster than a tokenizer, and equal to it on generated tasks."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._ids = tokenizer.get_vocab()

    def __call__(self, prompt: str, answer: str) -> Pair:
        """Returns the ids of a question in the chat template, and of its answer."""
        words = f"{prompt} {ANSWER_MARKER}".split()
        return [self._ids[word] for word in words], [self._ids[word] for word in answer.split()]
