"""The tokenizers of the embedded models: one token for every word and number of their world."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dllm_decode.training import Pair
from eval.tasks.grammar import cast, sentences
from eval.tasks.ledgers import months
from eval.tasks.lists import MAX_SUM, OUTPUTS
from eval.tasks.number_world import templates
from eval.tasks.puzzles import BLANK, ROW_END

END_OF_TEXT = "<|endoftext|>"
MASK = "<|mdm_mask|>"
START_OF_TEXT = "<|startoftext|>"
UNKNOWN = "<|unknown|>"
SPECIAL_TOKENS = (END_OF_TEXT, MASK, START_OF_TEXT, UNKNOWN)

MARKS = (*[".", "?", ",", ":", "+", "-", "*", "/", "=", "####", "[", "]", '"'], ROW_END, BLANK)
ANSWER_MARKER = "answer :"
MULTIPLE = 8

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
"""A user turn ends with the answer marker, an assistant turn with end-of-text.

The marker belongs to the question, so that a prompt is the same with and without
`add_generation_prompt`.
"""

CONNECTIVES = sentences("ledgers", "answer")["gain"].wordings["so"]
"""What may follow the equation of a ledger's line."""

# Words and numbers, the answer marker of GSM8K, and each other mark by itself.
PIECES = r"####|\w+|[^\w\s]"
LEDGER_PIECES = r"####|\d+|[a-z]+|[^\sa-z\d]"
"""What a token of ledgers is: numbers, words, and punctuation even where no space precedes it."""


def word_tokenizer(words: Sequence[str], pieces: str = PIECES) -> PreTrainedTokenizerFast:
    """Builds a tokenizer that has one token for every word.

    Text is lower-cased and split at white space and around punctuation, so "12 apples." is the same
    as "12 apples ." For lower-case words and marks that single spaces separate,
    `decode(encode(text)) == text`. End-of-text is also the padding token. The chat template writes
    a question followed by `answer :`. Words without a token become `<|unknown|>`; no generated task
    has any.

    Args:
        words: In the order of their ids, the special tokens included.
        pieces: Regular expression of the tokens between white space.
    """
    ids = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    split = pre_tokenizers.Split(Regex(pieces), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=START_OF_TEXT, eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT, mask_token=MASK, unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False, padding_side="left",
    )  # fmt: skip
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


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


def build_tokenizer(max_number: int = 200) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of `mini` and `mini-ar`, with numbers up to at least 200."""
    return word_tokenizer(vocabulary(max_number))


def build_ledger_tokenizer() -> PreTrainedTokenizerFast:
    """Returns the tokenizer of the models that answer `Ledgers`."""
    return word_tokenizer(ledger_vocabulary(), LEDGER_PIECES)


class Encoder:
    """Looks words up; several times faster than a tokenizer, and equal to it on generated tasks."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._ids = tokenizer.get_vocab()

    def __call__(self, prompt: str, answer: str) -> Pair:
        """Returns the ids of a question in the chat template, and of its answer."""
        words = f"{prompt} {ANSWER_MARKER}".split()
        return [self._ids[word] for word in words], [self._ids[word] for word in answer.split()]
