"""The tokenizer of a checkpoint, read without remote code."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Optional

from dllm_decode.models.families import CheckpointFacts
from dllm_decode.models.loading.json_files import read_json

if TYPE_CHECKING:
    import transformers


def read_tokenizer(
    folder: Path, family: str, wish: Literal["required", "optional"], *, fast: bool
) -> Optional["transformers.PreTrainedTokenizerBase"]:
    """Returns the tokenizer in a folder; `None` if it is optional and has no files.

    `wish` is `tokenizer` of `load_model`; for `fast` see `Family.fast_tokenizer`.
    """
    import transformers

    if wish not in ("required", "optional"):
        raise ValueError(
            f"tokenizer must be 'required' or 'optional', got {wish!r}. It says whether a model "
            "without tokenizer files may be loaded."
        )
    has_fast = (folder / "tokenizer.json").is_file()
    has_slow = (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file()
    if not (has_fast or (has_slow and not fast)):
        if wish == "optional":
            return None
        slow = "" if fast else ", or vocab.json and merges.txt,"
        raise FileNotFoundError(
            f"The folder of a {family} checkpoint must hold tokenizer.json{slow} beside its "
            f"weights, got {str(folder)!r} without. Add the tokenizer's files, or pass "
            "tokenizer='optional' to work with token ids alone."
        )
    # Not AutoTokenizer, which would ask on stdin whether remote code may run.
    # Qwen2's class replaces the rules in the file by its own, so it does not fit every file.
    is_generic = fast or (has_fast and _names_no_class(folder))
    # An unused class is not named, because naming Qwen2's imports its module, for 0.7 s.
    kind = transformers.PreTrainedTokenizerFast if is_generic else transformers.Qwen2Tokenizer
    try:
        tokenizer: transformers.PreTrainedTokenizerBase = kind.from_pretrained(folder)
        # Some wrong values in the files raise only when a text is encoded or decoded.
        tokenizer.decode(tokenizer.encode("a b", verbose=False))
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise ValueError(
            f"The tokenizer files in {str(folder)!r} cannot be read ({lines[0]}). Download "
            "tokenizer.json and tokenizer_config.json again."
        ) from error
    return tokenizer


def _names_no_class(folder: Path) -> bool:
    """Returns whether tokenizer.json alone decides how a text is split."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return False
    class_name = read_json(path).get("tokenizer_class")
    return class_name in ("PreTrainedTokenizerFast", "TokenizersBackend")


def padding_ids(
    tokenizer: Optional["transformers.PreTrainedTokenizerBase"], facts: CheckpointFacts
) -> tuple[int, ...]:
    """Returns ids that the tokenizer cannot turn into text: they fill up the vocabulary."""
    if tokenizer is None:
        return ()
    special_ids = {facts.mask_id, *facts.eos_ids}
    padding = range(len(tokenizer), facts.shape.vocab_size)
    return tuple(token for token in padding if token not in special_ids)
