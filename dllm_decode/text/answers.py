"""Answers as texts, and all of them with their cost."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from dllm_decode.core.commits import Commits
from dllm_decode.core.files import write_text
from dllm_decode.core.output import DecodeOutput, before_end
from dllm_decode.core.requests import Request
from dllm_decode.text.prose import Prose
from dllm_decode.text.tokenization import Tokenizer


class TokenCommit(NamedTuple):
    """The commit of one token of an answer, see `Commits`.

    Attributes:
        step: Step of the row that committed the token; -1: the token was given.
        logprob: Log-probability in the distribution that it was drawn from; `None` if given.
        model_logprob: Log-probability in the model's distribution; `None` if given.
    """

    step: int
    logprob: float | None
    model_logprob: float | None


@dataclass(frozen=True)
class Answer:
    """The answer to one input.

    Attributes:
        text: The answer before its EOS and before the first stop string. With a template: the whole
            text with its blanks filled.
        token_ids: The answer's tokens before the EOS, including a stop string and later tokens.
            Positions that were still unsettled when the row stopped are left out.
        finish_reason: "stop" if an EOS or a stop string has ended the answer, or if the answer is
            complete because it has a constraint; else "length".
        forwards: Forwards of the model that the answer's row took part in.
        commits: When each of the tokens was committed, and how likely the token was; `None` unless
            `return_logprobs` was set.
    """

    text: str
    token_ids: list[int] = field(repr=False)
    finish_reason: Literal["stop", "length"]
    forwards: int
    commits: list[TokenCommit] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as values for JSON, without `commits` if it is `None`."""
        content = asdict(self)
        if self.commits is None:
            del content["commits"]
        else:
            content["commits"] = [commit._asdict() for commit in self.commits]
        return content


@dataclass(frozen=True, repr=False)
class GenerateOutput:
    """One answer per input, and the decode that gave them.

    Length, index and iteration are those of `answers`.

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
        """The ratio of all answers' lengths to all rows' forwards.

        A length counts the EOS that ends the answer; in a template, the tokens after an EOS too.
        """
        lengths = zip(self.answers, self.decoded.lengths().tolist(), strict=True)
        num_tokens: int = sum(max(length, len(answer.token_ids)) for answer, length in lengths)
        return num_tokens / max(1, int(self.decoded.nfe.sum()))

    @property
    def num_tokens(self) -> int:
        """The tokens of all answers, without the EOS that ends each."""
        return sum(len(answer.token_ids) for answer in self.answers)

    @property
    def tokens_per_second(self) -> float:
        """The ratio of `num_tokens` to the seconds that all answers took together."""
        return self.num_tokens / self.decoded.wall_s if self.decoded.wall_s else 0.0

    @property
    def cost(self) -> str:
        """The cost in words."""
        return (
            f"{self.num_tokens} tokens in {self.decoded.wall_s:.2f} s, "
            f"{self.tokens_per_second:.0f} tokens/s, {int(self.decoded.nfe.sum())} forwards, "
            f"{self.tokens_per_forward:.1f} tokens per forward"
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the answers and their cost as values for JSON."""
        return {
            "answers": [answer.to_dict() for answer in self.answers],
            "forwards": self.decoded.forwards,
            "tokens_per_forward": self.tokens_per_forward,
            "tokens_per_second": self.tokens_per_second,
            "wall_s": self.decoded.wall_s,
        }

    def save(self, path: str | Path) -> None:
        """Writes `to_dict()` to a JSON file."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2)
        write_text(Path(path), f"{text}\n")


def answer_of(
    tokenizer: Tokenizer,
    request: Request,
    decoded: DecodeOutput,
    row: int,
    stop_strings: Sequence[str],
) -> Answer:
    """Returns the answer to a request, from one row of a decode that may be longer.

    With a template, an EOS leaves its position empty, and the text goes on after it.
    """
    tokens = decoded.tokens[row, : request.config.gen_length]
    positions = (~decoded.unsettled[row, : request.config.gen_length]).nonzero().flatten()
    if request.template:
        positions = positions[~torch.isin(tokens[positions], torch.tensor(decoded.eos_ids))]
        token_ids = tokens[positions].tolist()
        has_ended = int(tokens[-1]) in decoded.eos_ids
    else:
        token_ids = before_end(tokens[positions].tolist(), decoded.eos_ids)
        positions = positions[: len(token_ids)]
        has_ended = len(token_ids) < len(tokens)
    prose = Prose(tokenizer, stop_strings)
    has_ended = has_ended or prose.stops(token_ids) or request.constraint is not None
    text, forwards = prose.whole(token_ids), int(decoded.nfe[row])
    commits = None if decoded.commits is None else _token_commits(decoded.commits, row, positions)
    return Answer(text, token_ids, "stop" if has_ended else "length", forwards, commits)


def _token_commits(commits: Commits, row: int, positions: Int[Tensor, " N"]) -> list[TokenCommit]:
    """Returns the commits at some positions of a row."""
    steps, *logprobs = (part[row, positions].tolist() for part in commits)
    return [
        TokenCommit(step, *((None, None) if step < 0 else pair))
        for step, *pair in zip(steps, *logprobs, strict=True)
    ]
