"""The words of ledgers, and the tokenizer of the models that are trained on them."""

from typing import TYPE_CHECKING

from tokenizers import Regex, pre_tokenizers

from eval.tasks.vocabulary import (
    ANSWER_MARKER,
    CHAT_TEMPLATE,
    END_OF_TEXT,
    MARKS,
    MASK,
    MULTIPLE,
    SPECIAL_TOKENS,
    START_OF_TEXT,
    UNKNOWN,
)
from eval.tasks.word_problem_templates import (
    HELD_OUT_NAMES,
    HELD_OUT_OBJECTS,
    NAMES,
    OBJECTS,
    words,
)

if TYPE_CHECKING:
    from dllm_decode.training.tokenizer import WordTokenizer

MAX_NUMBER = 200

GAIN_VERBS = words("gains gets finds buys wins earns")
LOSS_VERBS = words("loses drops sells eats spends breaks")
"""What happens in questions: an account grows or shrinks."""

MONTHS = words(
    "january february march april may june july august september october november december"
)
"""When it happens; the changes of a question come one a month, from January on."""

WRITTEN_GAINS = GAIN_VERBS[:2]
WRITTEN_LOSSES = LOSS_VERBS[:2]
"""The verbs that answers use; either of two says the same."""

CONNECTIVES = ("so now", "which means")

OTHER_WORDS = words(
    "has had owns in with and how many does do now at the end they have together total all so "
    "which means added is"
)

PIECES = r"####|\d+|[a-z]+|[^\sa-z\d]"
"""What a token is: numbers, words, and punctuation even where no space precedes it."""


def ledger_vocabulary() -> tuple[str, ...]:
    """Returns the words in the order of their ids, special tokens first, as `vocabulary` has it."""
    used_words = {*NAMES, *HELD_OUT_NAMES, *OBJECTS, *HELD_OUT_OBJECTS, *OTHER_WORDS}
    used_words |= {*GAIN_VERBS, *LOSS_VERBS, *MONTHS, ANSWER_MARKER.split()[0]}
    numbers = (str(number) for number in range(MAX_NUMBER + 1))
    used = (*SPECIAL_TOKENS, *MARKS, ";", "!", *numbers, *sorted(used_words))
    num_reserved = -len(used) % MULTIPLE
    return (*used, *(f"<|reserved_{i}|>" for i in range(num_reserved)))


def build_ledger_tokenizer() -> "WordTokenizer":
    """Returns the tokenizer of the models that answer `Ledgers`.

    One token a word and a number. Unlike `build_tokenizer`'s it splits punctuation off, so
    `Ann has 40 beads, Ben has 25.` may be written as anyone would.
    """
    # Here, so that using a task does not wait for the training code.
    from dllm_decode.training.tokenizer import word_tokenizer

    tokenizer = word_tokenizer(
        ledger_vocabulary(),
        eos=END_OF_TEXT,
        mask=MASK,
        start=START_OF_TEXT,
        unknown=UNKNOWN,
        chat_template=CHAT_TEMPLATE,
    )
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    spaces = pre_tokenizers.WhitespaceSplit()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([spaces, split])
    return tokenizer
