"""Texts, chats or token ids in, texts out."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import shorten
from typing import Any, Literal, Protocol, TypeAlias, Unpack, runtime_checkable

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


UseTemplate: TypeAlias = bool | Literal["auto"]
"""Whether texts are put through the chat template; "auto": if the tokenizer has one."""


@runtime_checkable
class Tokenizer(Protocol):
    """The methods of a transformers tokenizer that `generate` calls."""

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Any: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str: ...

    def apply_chat_template(
        self, conversation: Any, *, add_generation_prompt: bool, tokenize: bool
    ) -> Any: ...


@dataclass(frozen=True)
class Answer:
    """The answer to one input.

    Attributes:
        text: The answer before its EOS and before the first stop string.
        token_ids: Its tokens before the EOS; a stop string and what follows it are among them.
        finish_reason: "stop" if an EOS or a stop string has ended it, "length" if it is full.
        forwards: Forwards of the model that its row took part in.
    """

    text: str
    token_ids: list[int] = field(repr=False)
    finish_reason: Literal["stop", "length"]
    forwards: int


@dataclass(frozen=True, repr=False)
class GenerateOutput:
    """One answer per input, and the decode that gave them.

    It has a length, an index and an iteration: those of `answers`.

    Attributes:
        answers: The answers, in the order of the inputs.
        decoded: Tokens and cost of all answers.
    """

    answers: list[Answer]
    decoded: DecodeOutput

    def __len__(self) -> int:
        return len(self.answers)

    def __getitem__(self, index: int) -> Answer:
        return self.answers[index]

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)

    def __repr__(self) -> str:
        """Returns the cost and the beginnings of the first texts."""
        texts = ", ".join(repr(shorten(text, 50, placeholder=" ...")) for text in self.texts[:3])
        more = ", ..." if len(self) > 3 else ""
        return f"GenerateOutput([{texts}{more}], {len(self)} answers, {self.cost})"

    @property
    def texts(self) -> list[str]:
        """The text of each answer."""
        return [answer.text for answer in self.answers]

    @property
    def tokens_per_forward(self) -> float:
        """The ratio of all answers' lengths to all rows' forwards."""
        return self.decoded.tokens_per_forward()

    @property
    def cost(self) -> str:
        """The cost in words."""
        return (
            f"{int(self.decoded.nfe.sum())} forwards, {self.tokens_per_forward:.1f} tokens per "
            f"forward, {self.decoded.wall_s:.2f} s"
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what JSON can hold: the answers and their cost."""
        return {
            "answers": [asdict(answer) for answer in self.answers],
            "forwards": self.decoded.forwards,
            "tokens_per_forward": self.tokens_per_forward,
            "wall_s": self.decoded.wall_s,
        }


def generate(
    model: MaskPredictor,
    tokenizer: Tokenizer,
    inputs: Inputs,
    sampler: Sampler,
    *,
    chat: UseTemplate = "auto",
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
        out = generate(model, tokenizer, question, ConfidenceThreshold(0.9))
        print(out.texts[0])

    Args:
        model: The mask predictor.
        tokenizer: The model's tokenizer, as `load_model` returns it.
        inputs: A text or texts, see `chat`; a chat or chats, lists of turns with "role" and
            "content", which go through the tokenizer's chat template; or token ids: a list, lists,
            a tensor with its `attention_mask`, or the tokenizer's output.
        sampler: Which positions to commit, and with which token.
        chat: How texts are read. "auto": as one user turn of the chat template if the tokenizer
            has a template. True: so always. False: as they are, with a warning if there is a
            template. A text that begins with a special token is taken for one that has been through
            a template already: with "auto" and False its tokens are read, and nothing is added.
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
    prompts = prompt_ids(tokenizer, inputs, attention_mask, chat=chat)
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
    answers = _answers(tokenizer, decoded, strings)
    if stream is not None:
        stream.close(answers[0].token_ids)
    return GenerateOutput(answers, decoded)


def _answers(
    tokenizer: Tokenizer, decoded: DecodeOutput, stop_strings: Sequence[str]
) -> list[Answer]:
    answers = []
    rows = zip(decoded.answers(), decoded.tokens, decoded.nfe.tolist(), strict=True)
    for token_ids, tokens, forwards in rows:
        whole = tokenizer.decode(token_ids, skip_special_tokens=True)
        text = cut_at(whole, stop_strings)
        is_full = len(token_ids) == len(tokens) and text == whole
        answers.append(Answer(text, token_ids, "length" if is_full else "stop", forwards))
    return answers


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
    tokenizer: Tokenizer,
    inputs: Any,
    attention_mask: Tensor | None = None,
    *,
    chat: UseTemplate = "auto",
) -> list[Prompt]:
    """Returns token ids of texts, chats or ids, one sequence per input; see `generate`.

    Warns if the tokenizer does not know a word of a text or chat, and names it; also if texts are
    not put through the chat template that the tokenizer has.

    Raises:
        ValueError: If there is no input, the inputs are of different kinds, or a chat template is
            wanted and there is none.
    """
    if isinstance(inputs, str):
        return _ids_of_texts(tokenizer, [inputs], chat)
    if isinstance(inputs, Mapping | Tensor) or attention_mask is not None:
        return token_lists(inputs, attention_mask)
    if not len(inputs):
        raise ValueError("inputs must hold at least one text, chat or prompt, got none.")
    first: Any = inputs[0]
    if isinstance(first, str):
        return _ids_of_texts(tokenizer, [_require(str, text, "a text") for text in inputs], chat)
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


def _ids_of_texts(tokenizer: Tokenizer, texts: Sequence[str], chat: UseTemplate) -> list[Prompt]:
    """Returns the ids of texts, each through the chat template or as it is; see `generate`."""
    if chat not in ("auto", True, False):
        raise ValueError(f'chat must be "auto", True or False, got {chat!r}.')
    special = tuple(getattr(tokenizer, "all_special_tokens", ()))
    is_done = [chat is not True and text.startswith(special) for text in texts]
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if chat is False and has_template and not all(is_done):
        warnings.warn(
            "The tokenizer has a chat template, and the texts are not put through it, as "
            "chat=False says; a model that was trained on chats may answer nothing.",
            stacklevel=4,
        )
    wants_template = has_template if chat == "auto" else chat
    if wants_template:
        texts = [
            text if done else _text_of_chat(tokenizer, [{"role": "user", "content": text}])
            for text, done in zip(texts, is_done, strict=True)
        ]
    return _ids_of(tokenizer, texts, [not wants_template and not done for done in is_done])


def _ids_of_chats(tokenizer: Tokenizer, chats: Sequence[Any]) -> list[Prompt]:
    texts = [_text_of_chat(tokenizer, chat) for chat in chats]
    return _ids_of(tokenizer, texts, [False] * len(texts))


def _ids_of(
    tokenizer: Tokenizer, texts: Sequence[str], adds_special: Sequence[bool]
) -> list[Prompt]:
    """Returns token ids; a text that a template has written has its special tokens already."""
    prompts: list[Prompt] = [
        list(tokenizer(text, add_special_tokens=adds)["input_ids"])
        for text, adds in zip(texts, adds_special, strict=True)
    ]
    unknown = unknown_words(tokenizer, texts, prompts)
    if unknown.words:
        warnings.warn(str(unknown), stacklevel=5)
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
            "none. Pass texts instead, without chat=True."
        )
    text: str = tokenizer.apply_chat_template(
        list(chat), add_generation_prompt=True, tokenize=False
    )
    return text


def _require_tokenizer(tokenizer: object) -> None:
    if isinstance(tokenizer, type) or not isinstance(tokenizer, Tokenizer):
        raise ValueError(
            f"tokenizer must be the tokenizer that load_model returns, got {tokenizer!r}."
        )
