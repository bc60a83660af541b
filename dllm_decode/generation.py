"""Texts, chats or token ids in, texts out."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, Unpack, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.core.observers import Observer, StepEvent
from dllm_decode.core.output import DecodeOutput
from dllm_decode.core.requests import RequestQueue
from dllm_decode.core.stopping import NeverStop, StopRule, StopStrings, cut_at
from dllm_decode.decoder import Verifier
from dllm_decode.loop import gathered, new_decoder, run, sound
from dllm_decode.models.base import MaskPredictor
from dllm_decode.options import DecodeConfig, DecodeOptions, require_integer
from dllm_decode.progress import AnswerProgress
from dllm_decode.prompts import Prompt, Prompts, token_lists
from dllm_decode.streaming import DraftStreamer, PrefixStream, PrefixStreamer, draft_observer
from dllm_decode.unknown_words import unknown_words
from dllm_decode.verify import NoVerifier
from samplers.base import Sampler

Message: TypeAlias = Mapping[str, str]
"""One turn of a chat: its "role" and "content"."""

Inputs: TypeAlias = str | Sequence[str] | Sequence[Message] | Sequence[Sequence[Message]] | Prompts
"""A text, texts, a chat, chats, or token ids in any form that `decode` takes."""


@runtime_checkable
class Tokenizer(Protocol):
    """The methods of a transformers tokenizer that `generate` calls."""

    def __call__(self, text: str) -> Any: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str: ...

    def apply_chat_template(
        self, conversation: Any, *, add_generation_prompt: bool, tokenize: bool
    ) -> Any: ...


@dataclass(frozen=True)
class GenerateOutput:
    """Texts, and the decode that gave them.

    Attributes:
        texts: One answer per input, before its EOS and before the first stop string.
        decoded: Tokens and cost.
    """

    texts: list[str]
    decoded: DecodeOutput

    @property
    def tokens_per_forward(self) -> float:
        """The ratio of all answers' lengths to all rows' forwards."""
        return self.decoded.tokens_per_forward()


def generate(
    model: MaskPredictor,
    tokenizer: Tokenizer,
    inputs: Inputs,
    sampler: Sampler,
    *,
    attention_mask: Int[Tensor, "B N"] | None = None,
    config: DecodeConfig = DecodeConfig(),
    cache: CachePolicy = NoCache(),
    verifier: Verifier = NoVerifier(),
    blocks: BlockSchedule = Sequential(),
    observers: Sequence[Observer] = (),
    streamer: PrefixStreamer | DraftStreamer | None = None,
    stop_strings: str | Sequence[str] = (),
    num_rows: int = 8,
    progress: bool = False,
    max_new_tokens: int | None = None,
    **options: Unpack[DecodeOptions],
) -> GenerateOutput:
    """Answers texts or chats.

        model, tokenizer = load_model("mini")
        question = (
            "emma has 12 apples . emma finds 5 more apples and then gives 2 apples to ben . "
            "how many apples does emma have now ?"
        )
        chat = [{"role": "user", "content": question}]
        out = generate(model, tokenizer, chat, ConfidenceThreshold(0.9))
        print(out.texts[0])

    Args:
        model: The mask predictor.
        tokenizer: The model's tokenizer, as `load_model` returns it.
        inputs: A text or texts, which are tokenized as they are; a chat or chats, lists of turns
            with "role" and "content", which go through the tokenizer's chat template; or token
            ids: a list, lists, a tensor with its `attention_mask`, or the tokenizer's output.
        sampler: Which positions to commit, and with which token.
        attention_mask: For token ids in a tensor: 0 at padding.
        config: The options of the decode.
        cache: Which columns to recompute at each forward.
        verifier: How proposals are checked.
        blocks: Which positions are open, as in `decode`.
        observers: Called after each round with a `StepEvent`.
        streamer: A streamer of transformers, for a single input. One with `put_draft`, such as
            `TextDiffusionStreamer`, is shown the whole answer after each round; any other, such as
            `TextStreamer`, the committed tokens that no mask precedes. Both are given the prompt
            first, as transformers does; `skip_prompt=True` hides it.
        stop_strings: Texts that end an answer; they and the text after them are not returned.
        num_rows: Inputs that are decoded together, at most.
        progress: Show on standard error how many answers and tokens are done.
        max_new_tokens: The name that transformers has for `gen_length`.
        **options: Fields of `DecodeConfig`, which override `config`.

    Raises:
        TypeError: If an option is unknown.
        ValueError: If the arguments do not fit together; the message names those that do not.
    """
    if max_new_tokens is not None:
        if options.get("gen_length") is not None:
            raise ValueError(
                "max_new_tokens and gen_length must not both be given, since they are the same, "
                f"got {max_new_tokens} and {options['gen_length']}."
            )
        options["gen_length"] = max_new_tokens
    require_integer("num_rows", num_rows, least=1)
    config = config.updated(**options)
    _require_tokenizer(tokenizer)
    prompts = prompt_ids(tokenizer, inputs, attention_mask)
    strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
    stop: StopRule = StopStrings(tokenizer, strings) if strings else NeverStop()
    decoder = new_decoder(
        model, sampler, cache=cache, verifier=verifier, blocks=blocks, config=config
    )
    requests = [decoder.request(prompt, n, stop=stop) for n, prompt in enumerate(prompts)]
    stream = None if streamer is None else _Stream(streamer, prompts)
    watching: list[Observer] = [*observers] if stream is None else [*observers, stream]
    with AnswerProgress(len(prompts), is_shown=progress) as counted:
        queue = RequestQueue(iter(requests))
        if progress:
            watching.append(counted)
        decoded = gathered(sound(run(decoder, queue, num_rows, watching)))
    answers = decoded.answers()
    texts = [
        cut_at(tokenizer.decode(answer, skip_special_tokens=True), strings) for answer in answers
    ]
    if stream is not None:
        stream.close(answers[0])
    return GenerateOutput(texts, decoded)


class _Stream:
    """An observer that feeds a streamer of either kind."""

    def __init__(
        self,
        streamer: PrefixStreamer | DraftStreamer,
        prompts: Sequence[Prompt],
    ) -> None:
        if len(prompts) != 1:
            raise ValueError(f"streamer must be given with a single input, got {len(prompts)}.")
        # As transformers does; its streamers have an option to skip the prompt.
        streamer.put(torch.as_tensor(prompts[0]))
        self._is_ended = False
        self._streamer = streamer
        self._prefix: PrefixStream | None = None
        if isinstance(streamer, DraftStreamer):
            self._observe = draft_observer(streamer)
        else:
            self._prefix = PrefixStream(streamer)
            self._observe = self._prefix

    def __call__(self, event: StepEvent) -> None:
        self._observe(event)
        self._is_ended = not bool(event.after.unfinished.any())

    def close(self, answer: list[int]) -> None:
        """Ends the stream."""
        if self._prefix is not None:
            self._prefix.close(answer)
        elif not self._is_ended:
            self._streamer.put(torch.tensor(answer, dtype=torch.long))
            self._streamer.end()


def prompt_ids(
    tokenizer: Tokenizer, inputs: Any, attention_mask: Tensor | None = None
) -> list[Prompt]:
    """Returns token ids of texts, chats or ids, one sequence per input; see `Inputs`.

    Warns if the tokenizer does not know a word of a text or chat, and names it.

    Raises:
        ValueError: If there is no input, or the inputs are of different kinds.
    """
    if isinstance(inputs, str):
        return _ids_of_texts(tokenizer, [inputs])
    if isinstance(inputs, Mapping | Tensor) or attention_mask is not None:
        return token_lists(inputs, attention_mask)
    if not len(inputs):
        raise ValueError("inputs must hold at least one text, chat or prompt, got none.")
    first: Any = inputs[0]
    if isinstance(first, str):
        return _ids_of_texts(tokenizer, [_require(str, text, "a text") for text in inputs])
    if isinstance(first, Mapping):
        return _ids_of_chats(tokenizer, [inputs])
    if isinstance(first, Sequence) and first and isinstance(first[0], Mapping):
        return _ids_of_chats(tokenizer, inputs)
    if isinstance(first, int):
        return [inputs]
    return token_lists(inputs)


def _require(kind: type, value: Any, what: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"inputs must be of one kind, got {what} and {value!r}.")
    return value


def _ids_of_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Prompt]:
    prompts: list[Prompt] = [list(tokenizer(text)["input_ids"]) for text in texts]
    _warn_of_unknown_words(tokenizer, texts, prompts)
    return prompts


def _ids_of_chats(tokenizer: Tokenizer, chats: Sequence[Any]) -> list[Prompt]:
    texts = [_text_of_chat(tokenizer, chat) for chat in chats]
    # The template writes the special tokens itself.
    prompts: list[Prompt] = [
        list(tokenizer(text, add_special_tokens=False)["input_ids"])  # type: ignore[call-arg]
        for text in texts
    ]
    _warn_of_unknown_words(tokenizer, texts, prompts)
    return prompts


def _text_of_chat(tokenizer: Tokenizer, chat: Any) -> str:
    for message in chat:
        keys = set(_require(Mapping, message, "a chat"))
        if not {"role", "content"} <= keys:
            raise ValueError(
                f'A message of a chat must have "role" and "content", got {sorted(keys)}.'
            )
    if getattr(tokenizer, "chat_template", None) is None:
        raise ValueError(
            "A chat must be given with a tokenizer that has a chat template, and this one has "
            "none. Pass texts instead."
        )
    text: str = tokenizer.apply_chat_template(
        list(chat), add_generation_prompt=True, tokenize=False
    )
    return text


def _warn_of_unknown_words(
    tokenizer: Tokenizer, texts: Sequence[str], prompts: Sequence[Prompt]
) -> None:
    """Warns if the tokenizer reads a word as its unknown token."""
    unknown = unknown_words(tokenizer, texts, prompts)
    if unknown.words:
        warnings.warn(str(unknown), stacklevel=5)


def _require_tokenizer(tokenizer: object) -> None:
    if isinstance(tokenizer, type) or not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"tokenizer must be the tokenizer that load_model returns, got {tokenizer!r}."
        )
