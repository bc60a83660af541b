"""A word-level tokenizer, for models whose world is a fixed list of words."""

from collections.abc import Sequence
from typing import TypeAlias

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WordTokenizer: TypeAlias = PreTrainedTokenizerFast

# Words and numbers, the answer marker of GSM8K, and each other mark by itself.
_PIECES = r"####|\w+|[^\w\s]"


def word_tokenizer(
    words: Sequence[str], *, eos: str, mask: str, start: str, unknown: str, chat_template: str
) -> WordTokenizer:
    """Builds a tokenizer that has one token for every word.

    Text is lower-cased and split at white space and around punctuation, so "12 apples." is the same
    as "12 apples ." For lower-case words and marks that single spaces separate,
    `decode(encode(text)) == text`.

    Args:
        words: In the order of their ids, the four special words included.
        eos: Ends an answer, and pads.
        mask: The [MASK] token.
        start: Begins a text; never added by itself.
        unknown: Stands for any other word.
        chat_template: Jinja template of a conversation.
    """
    ids = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    tokenizer.normalizer = normalizers.Lowercase()
    pieces = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pieces])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=start, eos_token=eos, pad_token=eos, mask_token=mask,
        unk_token=unknown, clean_up_tokenization_spaces=False, padding_side="left",
    )  # fmt: skip
    wrapped.chat_template = chat_template
    return wrapped
