"""The tokenizers of the embedded models: one token for every word and number of their world."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dllm_decode.training import Pair
from eval.tasks.grammar import cast, sentences
from eval.tasks.ledgers import months
from eval.tasks.lists import MAX_SUM, OUTPUTS
from eval.tasks.number_world import templates
from eval.tasks.puzzles import BLANK, ROW_END

END_OF_TEXT, MASK = "<|endoftext|>", "<|mdm_mask|>"
START_OF_TEXT, UNKNOWN = "<|startoftext|>", "<|unknown|>"
MARKS = (*[".", "?", ",", ":", "+", "-", "*", "/", "=", "####", "[", "]", '"'], ROW_END, BLANK)
ANSWER_MARKER = "answer :"

# A user turn ends with the answer marker, so that a prompt is the same with and without
# `add_generation_prompt`; an assistant turn ends with end-of-text.
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")

CONNECTIVES = sentences("ledgers", "answer")["gain"].wordings["so"]
"""What may follow the equation of a ledger's line."""

# Words, numbers, the marker #### and each other mark; words of ledgers have no digits.
PIECES, LEDGER_PIECES = r"####|\w+|[^\w\s]", r"####|\d+|[a-z]+|[^\sa-z\d]"


def word_tokenizer(words: Sequence[str], pieces: str = PIECES) -> PreTrainedTokenizerFast:
    """Builds a tokenizer that has one token for every word; the ids are in the order of `words`.

    Text is lower-cased and split at white space and around punctuation (`pieces` are the tokens
    between white space), so "12 apples." is the same as "12 apples ." For lower-case words and
    marks that single spaces separate, `decode(encode(text)) == text`. End-of-text is also the
    padding token. Words without a token become `<|unknown|>`; no generated task has any.
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


def ordered(marks: Iterable[str], words: set[str]) -> tuple[str, ...]:
    """Lists special tokens, marks, numbers, words with those of the cast, reserved words.

    End-of-text is id 0, and [MASK] is id 1. The number of words is a multiple of 8.
    """
    spoken = {*words, ANSWER_MARKER.split()[0]}
    for kind in ("known", "held_out"):
        spoken.update(*cast(kind))
    numbers = map(str, range(MAX_SUM + 1))
    used = (END_OF_TEXT, MASK, START_OF_TEXT, UNKNOWN, *marks, *numbers, *sorted(spoken))
    return (*used, *(f"<|reserved_{i}|>" for i in range(-len(used) % 8)))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Returns the tokenizer of `mini`, `mini-ar` and `mini-lists`."""
    told = {word for template in templates().values() for word in template.words()}
    return word_tokenizer(ordered(MARKS, {*told, *OUTPUTS, "latin", "sudoku4"}))


def build_ledger_tokenizer() -> PreTrainedTokenizerFast:
    """Returns the tokenizer of the models that answer `Ledgers`."""
    spoken = [*sentences("ledgers", "question").values(), *sentences("ledgers", "answer").values()]
    told = {word for sentence in spoken for word in sentence.words()}
    return word_tokenizer(ordered((*MARKS, ";", "!"), {*told, *months()}), LEDGER_PIECES)


def encode(ids: Mapping[str, int], prompt: str, answer: str) -> Pair:
    """Returns the ids of a question in the chat template, and of its answer.

    Several times faster than a tokenizer, and equal to it on generated tasks.
    """
    words = f"{prompt} {ANSWER_MARKER}".split()
    return [ids[word] for word in words], [ids[word] for word in answer.split()]
