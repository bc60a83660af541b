"""Texts of tokens, compared with the texts that the tokenizers themselves decode."""

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dllm_decode.models import load_model
from dllm_decode.text.constraints import Vocabulary, read_vocabulary

LINES = ["the yes and no", '{"name": [1, 2]}', "née 漢字 😀😀", "  two  spaces\n"] * 5


def byte_level() -> PreTrainedTokenizerFast:
    """Returns a tokenizer like GPT-2's: some tokens are parts of characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=["<|end|>", "<|mask|>"]
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def sentence_piece() -> PreTrainedTokenizerFast:
    """Returns a tokenizer like Llama's: "▁" for a space, bytes by name, no leading space."""
    pieces = ["<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁yes", "no", "▁é"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def words() -> PreTrainedTokenizerFast:
    tokenizer = load_model("mini")[1]
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


@pytest.mark.parametrize("make", [byte_level, sentence_piece, words])
def test_texts_of_tokens_make_the_text_of_an_answer(make) -> None:
    tokenizer = make()
    eos = tokenizer.eos_token_id
    vocabulary = read_vocabulary(tokenizer, len(tokenizer) + 3, (eos,), (1,))
    draw, num_compared = random.Random(0), 0
    tokens = [token for token, text in enumerate(vocabulary.later) if text is not None]
    assert len(tokens) > 50
    for _ in range(400):
        ids = draw.choices(tokens, k=draw.randint(1, 4))
        parts = [vocabulary.first[ids[0]], *(vocabulary.later[token] for token in ids[1:])]
        try:
            text = b"".join(part or b"" for part in parts).decode()
        except UnicodeDecodeError:
            continue
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
        num_compared += 1
    assert num_compared >= 30


def test_special_tokens_are_part_of_no_text() -> None:
    tokenizer = byte_level()
    vocabulary = read_vocabulary(tokenizer, len(tokenizer) + 3, (0,), (1, 70))
    for token in (0, 1, 70, len(tokenizer), len(tokenizer) + 2):
        assert vocabulary.first[token] is vocabulary.later[token] is None
    assert sum(text is None for text in vocabulary.later) == 6


def test_parts_of_characters_are_bytes() -> None:
    texts = read_vocabulary(byte_level(), 330, (0,), (1,)).later
    assert {bytes([byte]) for byte in range(256)} <= set(texts)


def test_a_vocabulary_is_equal_by_its_texts() -> None:
    assert Vocabulary.of([None, b"a"], [None, b"a"], (0,)) == Vocabulary.of(
        [None, b"a"], [None, b"a"], (0,)
    )
    assert Vocabulary.of([None, b"a"], [None, b"a"], (0,)) != Vocabulary.of(
        [None, b"a"], [None, b" a"], (0,)
    )


def test_a_tokenizer_whose_texts_are_not_those_of_its_tokens_is_refused() -> None:
    tokenizer = byte_level()
    tokenizer.backend_tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="byte-level BPE, SentencePiece, or words with spaces"):
        read_vocabulary(tokenizer, 330, (0,), (1,))
