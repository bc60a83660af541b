"""A set of texts as states and classes of tokens, for rows whose answer must be one of them."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

DEAD_CLASS = 0
"""Class of the tokens that are part of no text: special tokens, and those that fit nowhere."""

EOS_CLASS = 1
"""Class of the tokens that end an answer."""

_UNREACHABLE = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Automaton:
    """A set of texts, read token by token.

    An answer begins in state 0. A token leads from a state to at most one other. Tokens that lead
    from every state to the same states are one class, so that an edge is a state, a class and the
    next state. In an accepting state the text so far is in the set: an EOS leads from there to the
    last state, which only further EOS follow.

    `compile_constraint` makes automata, on the CPU.

    Attributes:
        classes: The class of each token; `DEAD_CLASS` and `EOS_CLASS` are special.
        sources: The state in which each edge begins, ascending.
        labels: The class of each edge's tokens.
        targets: The state to which each edge leads.
        distances: Fewest tokens from each state to an accepting one; 0 in accepting states.
        examples: The lowest token of each class; 0 for a class without tokens.
    """

    classes: Int[Tensor, " V"]
    sources: Int[Tensor, " E"]
    labels: Int[Tensor, " E"]
    targets: Int[Tensor, " E"]
    distances: Int[Tensor, " S"]
    examples: Int[Tensor, " C"]

    @property
    def num_states(self) -> int:
        """Number of states, S, with the one that follows an EOS."""
        return len(self.distances)

    @property
    def num_classes(self) -> int:
        """Number of classes, C, with the two special ones."""
        return len(self.examples)

    def least_length(self, template: Sequence[int] = (), mask_id: int | None = None) -> int | None:
        """Returns the fewest tokens of an answer that fits the template; `None` if none does.

        Args:
            template: First tokens of the answer, `mask_id` at its blanks.
            mask_id: The [MASK] token.
        """
        given_positions = [position for position, token in enumerate(template) if token != mask_id]
        num_given = given_positions[-1] + 1 if given_positions else 0
        reached = torch.zeros(self.num_states, dtype=torch.bool)
        reached[0] = True
        for token in template[:num_given]:
            is_taken = reached[self.sources]
            if token != mask_id:
                is_taken = is_taken & (self.labels == self.classes[token])
            reached = torch.zeros_like(reached)
            reached[self.targets[is_taken]] = True
        if not reached.any():
            return None
        return num_given + int(self.distances[reached].min())


class Automata(NamedTuple):
    """The automata of some rows, padded to one size.

    Padding edges begin and end in a state S that no other edge reaches, padding states accept
    nothing, and padding classes have no tokens.

    Attributes:
        classes: As in `Automaton`, like all other fields.
        sources: A padding edge has S.
        labels: A padding edge has `DEAD_CLASS`.
        targets: A padding edge has S.
        distances: A padding state has a number that no answer reaches.
        examples: A padding class has 0.
    """

    classes: Int[Tensor, "B V"]
    sources: Int[Tensor, "B E"]
    labels: Int[Tensor, "B E"]
    targets: Int[Tensor, "B E"]
    distances: Int[Tensor, "B S"]
    examples: Int[Tensor, "B C"]

    @staticmethod
    def of(automata: Sequence[Automaton], device: torch.device | str = "cpu") -> "Automata":
        """Returns the automata of rows, of which there is at least one, on a device."""
        num_states = max(automaton.num_states for automaton in automata)
        padding = {
            "sources": num_states,
            "labels": DEAD_CLASS,
            "targets": num_states,
            "distances": _UNREACHABLE,
        }
        parts = []
        for field in fields(Automaton):
            tensors = [getattr(automaton, field.name) for automaton in automata]
            parts.append(_padded(tensors, padding.get(field.name, 0)).to(device))
        return Automata(*parts)

    @property
    def num_states(self) -> int:
        """Number of states, S, without the state of padding edges."""
        return self.distances.shape[1]

    @property
    def num_classes(self) -> int:
        """Number of classes, C."""
        return self.examples.shape[1]

    def take(self, rows: Int[Tensor, " N"]) -> "Automata":
        """Returns the automata of some rows."""
        return Automata(*(part[rows] for part in self))

    def after(self, states: Int[Tensor, " B"], tokens: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Returns the state to which a token leads from a state of each row; S if to none."""
        label = self.classes.gather(1, tokens[:, None])
        is_taken = (self.sources == states[:, None]) & (self.labels == label)
        next_states: Tensor = torch.where(is_taken, self.targets, self.num_states).amin(1)
        return next_states


def _padded(parts: Sequence[Shaped[Tensor, " _"]], value: int) -> Shaped[Tensor, "B m"]:
    """Stacks tensors of different lengths."""
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=value)
