"""Decoding as papers and documentation describe it, sharing nothing with the engine.

One row at a time, one column after the other, in Python's own numbers: slow and obvious. It uses
only two parts of the package: a model with its `ForwardInputs`, and the options of `DecodeConfig`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from dllm_decode import DecodeConfig, ForwardInputs


class Reference(NamedTuple):
    """An answer, and its tokens after each forward."""

    tokens: list[int]
    steps: list[list[int]]


@dataclass(frozen=True)
class Row:
    """A prompt, the beginning of its answer, its number in the batch, and its options."""

    prompt: Sequence[int]
    template: Sequence[int]
    index: int
    block_length: int
    config: DecodeConfig


@dataclass
class Block:
    """The part of the open block that a rule sees. Columns are those of the canvas.

    Attributes:
        masks: Columns that hold [MASK].
        filled: Columns that the rule has filled since the block was opened.
        canvas: The tokens.
        token: The token that the model would write at a column.
        confidence: Probability of this token.
        entropy: Entropy of the model's distribution, in nats.
        margin: Difference between the probabilities of the two likeliest tokens.
        random: A number in (0, 1).
        alone: Probability of the token in place, from a model that does not see it.
        step: Steps taken in this block.
        memory: State of the rule, empty when the block is opened.
    """

    masks: list[int]
    filled: list[int]
    canvas: list[int]
    token: dict[int, int] = field(default_factory=dict)
    confidence: dict[int, float] = field(default_factory=dict)
    entropy: dict[int, float] = field(default_factory=dict)
    margin: dict[int, float] = field(default_factory=dict)
    random: dict[int, float] = field(default_factory=dict)
    alone: dict[int, float] = field(default_factory=dict)
    step: int = 0
    memory: dict[str, Any] = field(default_factory=dict)


class Choice(NamedTuple):
    """Columns that take the model's token, and columns that become [MASK] again.

    With `stays_open`, the columns may still be edited in later steps.
    """

    write: list[int]
    remask: Sequence[int] = ()
    stays_open: bool = False


Rule = Callable[[Block], Choice]


def most_confident(confidence: dict[int, float], columns: list[int], count: int) -> list[int]:
    """Returns the columns of the highest numbers; among equal numbers the leftmost."""
    return sorted(columns, key=lambda column: (-confidence[column], column))[:count]


def threshold_rule(threshold: float) -> Rule:
    """Fast-dLLM: commits all confident tokens, or else the most confident one."""

    def choose(block: Block) -> Choice:
        chosen = [column for column in block.masks if block.confidence[column] >= threshold]
        return Choice(chosen or most_confident(block.confidence, block.masks, 1))

    return choose


def fixed_rule(steps: int, order: str = "confidence") -> Rule:
    """LLaDA: an equal number in each step, the remainder in the first ones; the last takes all."""

    def choose(block: Block) -> Choice:
        masks = block.memory.setdefault("masks", len(block.masks))
        quota = masks // steps + (block.step < masks % steps)
        quota = len(block.masks) if block.step >= steps - 1 else max(1, quota)
        scores = {
            "confidence": block.confidence,
            "margin": block.margin,
            "entropy": {column: -value for column, value in block.entropy.items()},
            "random": block.random,
        }[order]
        return Choice(most_confident(scores, block.masks, quota))

    return choose


def entropy_bound_rule(bound: float) -> Rule:
    """EB-Sampler: lowest entropy first, while the sum less the highest stays within the bound."""

    def choose(block: Block) -> Choice:
        ordered = sorted(block.masks, key=lambda column: (block.entropy[column], column))
        count = 0
        while count < len(ordered):
            entropies = [block.entropy[column] for column in ordered[: count + 1]]
            if sum(entropies) - max(entropies) > bound:
                break
            count += 1
        return Choice(ordered[: max(1, count)])

    return choose


def joint_rule(threshold: float, edit_threshold: float, max_edit_steps: int) -> Rule:
    """LLaDA 2.1: commits confident tokens, and edits tokens if the model now prefers another."""

    def choose(block: Block) -> Choice:
        commit = [column for column in block.masks if block.confidence[column] > threshold]
        commit = commit or most_confident(block.confidence, block.masks, 1)
        if not block.masks:
            block.memory["spent"] = block.memory.get("spent", 0) + 1
        spent = block.memory.get("spent", 0)
        edit = [
            column
            for column in block.filled
            if block.token[column] != block.canvas[column]
            and block.confidence[column] > edit_threshold
            and spent <= max_edit_steps
        ]
        is_full = len(commit) == len(block.masks)
        goes_on = bool(commit or edit) and spent < max_edit_steps
        return Choice(commit + edit, stays_open=goes_on or not is_full)

    return choose


def wino_rule(low: float, high: float, share: float, least: int, most: int) -> Rule:
    """WINO: commits generously, and re-masks tokens improbable to a model that sees all others."""

    def choose(block: Block) -> Choice:
        limit = min(max(int(share * len(block.masks)), least), most)
        wide = [column for column in block.masks if block.confidence[column] > low]
        commit = most_confident(block.confidence, wide, limit)
        commit = commit or most_confident(block.confidence, block.masks, 1)
        last, block.memory["accepts"] = block.memory.get("accepts", 1), len(commit)
        if len(commit) == 1:
            return Choice(commit)
        weak = [column for column in block.filled if block.alone[column] < high]
        doubts = {column: -block.alone[column] for column in weak}
        return Choice(commit, remask=most_confident(doubts, weak, last - 1))

    return choose


def decode(
    looks: "Looks", row: Row, rule: Rule, *, edits: bool = False, leaves_out: bool = False
) -> Reference:
    """Decodes one row, block after block; `leaves_out` if the rule reads `Block.alone`."""
    return _Decode(looks, row, rule, edits, leaves_out).run()


class _Decode:
    def __init__(self, looks: "Looks", row: Row, rule: Rule, edits: bool, leaves_out: bool) -> None:
        self.looks, self.rule, self.edits, self.leaves_out = looks, rule, edits, leaves_out
        self.row, self.config = row, row.config
        model, align = looks.model, looks.model.causal_block_length or 1
        self.mask_id, self.eos_ids = model.mask_id, model.eos_ids
        self.banned = {model.mask_id, *model.banned_ids, *row.config.banned_ids}
        self.start = len(row.prompt)
        self.stop = self.start + row.config.gen_length
        # On a block-causal model, blocks begin and end where the model's blocks do.
        self.first = self.start - self.start % align
        self.end = self.first + -(-(self.stop - self.first) // align) * align
        self.canvas = [*row.prompt, *row.template]
        self.canvas += [self.mask_id] * (self.end - len(self.canvas))
        self.open = {n for n, token in enumerate(self.canvas) if token == self.mask_id}
        self.given = set(range(self.end)) - self.open
        self.result = Reference([], [])

    def run(self) -> Reference:
        while not self._has_ended() and any(column < self.stop for column in self.open):
            size, column = self.row.block_length, min(self.open)
            at = column - (column - self.first) % size
            self._finish(range(at, min(at + size, self.end)))
        return self.result._replace(tokens=self._answer(fills=True))

    def _finish(self, block: range) -> None:
        """Decodes the open block, unless the answer ends inside it."""
        filled_before = {n for n in block if self.canvas[n] != self.mask_id}
        step, memory = 0, dict[str, Any]()
        while self.open & set(block) and not (step and self._has_ended()):
            seen = self._seen(block, filled_before, step)
            seen.memory = memory
            self._apply(seen, self.rule(seen), block)
            if self.config.truncate_at_eos:
                self._truncate()
            self._note()
            step += 1

    def _seen(self, block: range, filled_before: set[int], step: int) -> Block:
        mask = self.mask_id
        filled = [n for n in block if self.canvas[n] != mask and n not in filled_before]
        # A truncated token is no longer edited, but may be re-masked.
        filled = [n for n in filled if n in self.open] if self.edits else filled
        seen = Block([n for n in block if self.canvas[n] == mask], filled, self.canvas, step=step)
        logits = self.looks(self.canvas, block, step)
        num_held = sum(token != mask for token in self.canvas[self.start :])
        num_held = min(num_held, self.config.gen_length)
        for column in seen.masks + seen.filled:
            column_logits = logits[column]
            key = _position_key(
                self.row, min(num_held, self.config.gen_length), column - self.start
            )
            self._judge(seen, column, column_logits, key)
        if self.leaves_out:
            for column, column_logits in zip(
                block, self.looks.alone(self.canvas, block), strict=True
            ):
                shares = _softmax(self._tempered(self._allowed(column_logits)))
                seen.alone[column] = shares[self.canvas[column]]
        return seen

    def _judge(self, seen: Block, column: int, logits: list[float], key: int) -> None:
        """Writes the token and the statistics of one column into the block."""
        config, logits = self.config, self._tempered(self._allowed(logits))
        temperature = 1.0 if self._is_cut and config.temperature else config.temperature
        shares = _softmax(logits)
        token = _draw(logits, temperature, key) if temperature else logits.index(max(logits))
        likely = sorted(shares, reverse=True)
        is_last = token in config.deferred_ids and self.canvas[column] == self.mask_id
        scale = 2.0**-100 if is_last else 1.0
        seen.token[column] = token
        seen.confidence[column] = shares[token] * scale
        seen.margin[column] = (likely[0] - likely[1]) * scale
        seen.entropy[column] = -sum(share * math.log(share) for share in shares if share)
        seen.entropy[column] += math.log(len(shares)) if is_last else 0.0
        seen.random[column] = _uniform(key - 1)

    def _allowed(self, logits: list[float]) -> list[float]:
        return [-math.inf if n in self.banned else value for n, value in enumerate(logits)]

    @property
    def _is_cut(self) -> bool:
        """True if confidences come from the distribution that tokens are drawn from."""
        config = self.config
        return config.confidence_from == "tempered" or config.top_p < 1.0 or config.top_k > 0

    def _tempered(self, logits: list[float]) -> list[float]:
        """Divides by the temperature and cuts to the likeliest tokens, if the row asks for it."""
        config = self.config
        if not self._is_cut:
            return logits
        logits = [value / (config.temperature or 1.0) for value in logits]
        order = sorted(range(len(logits)), key=lambda token: -logits[token])
        shares, nucleus, mass = _softmax(logits), set[int](), 0.0
        for token in order:
            if config.top_p == 1.0 or mass <= config.top_p:
                nucleus.add(token)
            mass += shares[token]
        logits = [value if token in nucleus else -math.inf for token, value in enumerate(logits)]
        if 0 < config.top_k < len(logits):
            least = sorted(logits, reverse=True)[config.top_k - 1]
            logits = [value if value >= least else -math.inf for value in logits]
        return logits

    def _apply(self, seen: Block, choice: Choice, block: range) -> None:
        for column in choice.write:
            self.canvas[column] = seen.token[column]
        if not self.edits:
            self.open -= set(choice.write)
        elif not choice.stays_open:
            self.open -= set(block)
        for column in choice.remask:
            self.canvas[column] = self.mask_id
            self.open.add(column)

    def _truncate(self) -> None:
        """Writes EOS after an EOS over all but given tokens; if the rule edits, over masks only."""
        ends = [n for n in range(self.start, self.end) if self.canvas[n] in self.eos_ids]
        for column in range(ends[0] + 1, self.end) if ends else ():
            stays = self.edits and self.canvas[column] != self.mask_id
            if column not in self.given and not stays:
                self.canvas[column] = self.eos_ids[0]
                self.open.discard(column)

    def _has_ended(self) -> bool:
        """Returns True if an EOS is settled with nothing open before it."""
        settled = self.canvas[self.start : min(self.open, default=self.end)]
        return self.config.stop_at_eos and any(token in self.eos_ids for token in settled)

    def _answer(self, *, fills: bool = False) -> list[int]:
        mask, answer = self.mask_id, self.canvas[self.start : self.stop]
        return [self.eos_ids[0] if fills and t == mask else t for t in answer]

    def _note(self) -> None:
        has_ended = self._has_ended() or not any(column < self.stop for column in self.open)
        self.result.steps.append(self._answer(fills=has_ended and self.config.stop_at_eos))


# Counter-based noise: SplitMix64 of the seed, the number of the prompt, the number of tokens that
# the answer holds, the position and the token.
_BITS = (1 << 64) - 1


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _BITS
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _BITS
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _BITS
    return value ^ (value >> 31)


def _position_key(row: Row, num_held: int, position: int) -> int:
    request_key = _mix(_mix(row.config.seed & _BITS) ^ row.index)
    return _mix(_mix(request_key ^ num_held) ^ _mix(position & _BITS))


def _uniform(key: int) -> float:
    return ((_mix(key & _BITS) >> 12) + 0.5) * 2.0**-52


def _draw(logits: list[float], temperature: float, key: int) -> int:
    """Draws a token by Gumbel-max."""
    scores = [
        value / temperature - math.log(-math.log(_uniform(key + _mix(token + 1))))
        for token, value in enumerate(logits)
    ]
    return scores.index(max(scores))


def _softmax(logits: list[float]) -> list[float]:
    weights = [math.exp(value - max(logits)) for value in logits]
    total = sum(weights)
    return [weight / total for weight in weights]


@dataclass
class Looks:
    """Runs a model on all columns, or with a cache on the columns that its paper computes.

    Attributes:
        model: Anything with `predict`, and with `new_kv_cache` if there is a cache.
        cache: "none"; "prefix": the first forward of a block computes everything, the others the
            block and what follows it; "dual": the others compute the block alone. Where logits
            predict the next column, the column before the block is computed too.
    """

    model: Any
    cache: Literal["none", "prefix", "dual"] = "none"
    slots: Any = None

    def __call__(self, canvas: list[int], block: range, step: int) -> list[list[float] | None]:
        align, shift = self.model.causal_block_length, self.model.logit_shift
        end = block.stop if align else len(canvas)
        columns = range(end)
        if step and self.cache != "none":
            stop = end if self.cache == "prefix" else block.stop
            columns = range(max(0, block.start - shift), stop)
        logits = self._predicted(canvas, columns, end)
        by_column: list[list[float] | None] = [None] * len(canvas)
        for place, column in enumerate(columns):
            if column + shift < len(canvas):
                by_column[column + shift] = logits[place]
        if shift and columns.start == 0:
            # Nothing predicts column 0.
            by_column[0] = None
        return by_column

    def _predicted(self, canvas: list[int], columns: range, end: int) -> list[list[float]]:
        align = self.model.causal_block_length
        keys = range(end)
        sees = [[not align or k // align <= q // align for k in keys] for q in columns]
        options: dict[str, Any] = {}
        if self.cache != "none":
            self.slots = self.slots or self.model.new_kv_cache(1, len(canvas))
            options = {"kv_cache": self.slots.first(end), "slots": torch.tensor([list(columns)])}
        return _asked(self.model, [canvas[n] for n in columns], list(columns), sees, **options)

    def alone(self, canvas: list[int], block: range) -> list[list[float]]:
        """Adds a [MASK] for each column of the block, which sees all but this column.

        As in WINO's code, these masks see each other too, and no other column sees them.
        """
        columns = [*range(len(canvas)), *block]
        tokens = [*canvas, *[self.model.mask_id] * len(block)]
        sees = [[key < len(canvas) for key in range(len(columns))] for _ in columns]
        for place, column in enumerate(block, len(canvas)):
            sees[place] = [key != column for key in range(len(columns))]
        return _asked(self.model, tokens, columns, sees)[len(canvas) :]


def _asked(
    model: Any, tokens: list[int], positions: list[int], sees: list[list[bool]], **options: Any
) -> list[list[float]]:
    inputs = ForwardInputs(
        tokens=torch.tensor([tokens]),
        positions=torch.tensor([positions]),
        wanted=torch.arange(len(tokens))[None],
        attend=torch.tensor([sees]),
        **options,
    )
    return model.predict(inputs)[0].double().tolist()
