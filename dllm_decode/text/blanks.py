"""Texts with blanks: `[MASK]`, of one token, `[MASK:12]`, of twelve, or a choice, `[yes|no]`."""

from typing import Any, NamedTuple

from dllm_decode.core.model import MaskPredictor
from dllm_decode.text.brackets import split_blanks, split_choices
from dllm_decode.text.tokenization import Tokenizer, text_ids, warn_of_unknown_words


class Choice(NamedTuple):
    """A place of a text at which the probabilities of some answers are read.

    Attributes:
        texts: The answers, as they are written.
        token_ids: The tokens of each answer.
    """

    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]

    def masked(self, mask_id: int) -> list[int]:
        """Returns the masks of the place, for use while another place is read."""
        return [mask_id] * max(map(len, self.token_ids))


def template_ids(tokenizer: Tokenizer, text: str, model: MaskPredictor) -> list[int]:
    """Returns the token ids of a text with blanks, the mask id at its blanks.

    The tokenizer's own mask token is a blank of one token, too.

    Raises:
        ValueError: If there is no blank, or a blank is too long.
    """
    (first, *others), lengths = split_blanks(text)
    token_ids = _given_ids(tokenizer, first)
    for length, words in zip(lengths, others, strict=True):
        token_ids += [model.mask_id] * length + _given_ids(tokenizer, words)
    if model.mask_id not in token_ids:
        raise ValueError(
            f"A template must have a blank, such as [MASK:5] for five tokens, got {text!r}."
        )
    return token_ids


def _given_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the token ids of given words; warns of words that the tokenizer does not know."""
    token_ids = text_ids(tokenizer, text)
    warn_of_unknown_words(tokenizer, [text], [token_ids])
    return token_ids


def pieces_of(tokenizer: Tokenizer, text: str, model: MaskPredictor) -> list[list[int] | Choice]:
    """Returns the parts of a text with choices: token ids, which may be blanks, and choices.

    One space before a choice is part of each of its answers.

    Raises:
        ValueError: If there is no choice, or a choice has answers that do not differ.
    """
    (first, *others), choices = split_choices(text)
    pieces: list[list[int] | Choice] = [_part_ids(tokenizer, first, model)]
    for (space, answers), words in zip(choices, others, strict=True):
        choice = _choice(tokenizer, space, answers)
        pieces += [choice, _part_ids(tokenizer, words, model)]
    return pieces


def _part_ids(tokenizer: Tokenizer, text: str, model: MaskPredictor) -> list[int]:
    """Returns the token ids of a part of a text, which may have blanks."""
    _, lengths = split_blanks(text)
    return template_ids(tokenizer, text, model) if lengths else _given_ids(tokenizer, text)


def _choice(tokenizer: Tokenizer, space: str, answers: str) -> Choice:
    texts = tuple(answers.split("|"))
    token_ids = tuple(tuple(_given_ids(tokenizer, space + text)) for text in texts)
    if not all(map(str.strip, texts)) or not all(token_ids):
        raise ValueError(f"Each answer of a choice must have at least one token, got [{answers}].")
    if len(set(token_ids)) < len(token_ids):
        raise ValueError(f"The answers of a choice must differ in their tokens, got [{answers}].")
    return Choice(texts, token_ids)


def start_ids(tokenizer: Any) -> list[int]:
    """Returns the prompt for a text that has none: the BOS token, otherwise the EOS token.

    Raises:
        ValueError: If the tokenizer has neither token.
    """
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return [token]
    raise ValueError(
        "An input must be given, since the tokenizer has no token that texts begin with."
    )
