"""Texts, chats or token ids in, texts out."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import shorten
from typing import Any, Literal, Unpack

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.blocks import BlockSchedule, Sequential
from dllm_decode.caches import CachePolicy, NoCache
from dllm_decode.core.observers import Observer, StepEvent
from dllm_decode.core.output import DecodeOutput
from dllm_decode.core.rows import RequestQueue
from dllm_decode.core.stopping import NeverStop, StopRule, StopStrings, cut_at, num_before
from dllm_decode.decoder import Verifier
from dllm_decode.loop import gathered, new_decoder, requests_of, run, sound
from dllm_decode.models.base import MaskPredictor
from dllm_decode.options import DecodeConfig, DecodeOptions, require_integer
from dllm_decode.progress import AnswerProgress
from dllm_decode.prompts import Prompt
from dllm_decode.streaming import DraftStreamer, PrefixStream, PrefixStreamer, draft_observer
from dllm_decode.texts import Inputs, Tokenizer, UseTemplate, prompt_ids, require_tokenizer
from dllm_decode.verify import NoVerifier
from samplers.base import Sampler


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
        verifier: Runs the forwards of a round, and may decide in the sampler's place.
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
        RuntimeError: If a plug-in or the model breaks its contract.
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
    require_tokenizer(tokenizer)
    prompts = prompt_ids(tokenizer, inputs, attention_mask, chat=chat)
    strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
    stop: StopRule = StopStrings(tokenizer, strings) if strings else NeverStop()
    decoder = new_decoder(
        model, sampler, cache=cache, verifier=verifier, blocks=blocks, config=config
    )
    requests = list(requests_of(decoder, prompts, (), stop))
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
        # A stop string may be a special token, which the text of an answer does not show.
        kept = token_ids[: num_before(tokenizer, token_ids, stop_strings)]
        whole = tokenizer.decode(kept, skip_special_tokens=True)
        text = cut_at(whole, stop_strings)
        is_full = len(kept) == len(tokens) and text == whole
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
        self._is_ended = bool(event.ended.any())

    def close(self, answer: list[int]) -> None:
        """Ends the stream."""
        if self._prefix is not None:
            self._prefix.close(answer)
        elif not self._is_ended:
            self._streamer.put(torch.tensor(answer, dtype=torch.long))
            self._streamer.end()
