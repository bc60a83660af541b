"""Calls a sampler, and checks what it returns."""

from typing import Literal

import torch
from torch import Tensor

from samplers.base import Decision, Sampler
from samplers.checks import shown
from samplers.facts import Fact
from samplers.state import SamplerState, require_state, same_structure
from samplers.view import View


def first_state(sampler: Sampler[SamplerState], view: View) -> SamplerState:
    """Returns a sampler's state at the start of a block.

    Raises:
        RuntimeError: If the state is of a kind whose rows cannot be taken.
    """
    state = sampler.init(view)
    require_state(state, len(view.tokens), owner=sampler)
    return state


def next_step(
    sampler: Sampler[SamplerState], view: View, state: SamplerState
) -> tuple[Decision, SamplerState]:
    """Lets a sampler decide one step.

    Raises:
        RuntimeError: If the sampler returns no decision of the view's shape, or a state whose rows
            cannot be taken, or of another kind than the state before; or if it writes into the
            view's masks.
    """
    num_writes = _num_writes(view)
    returned: object = sampler.step(view, state)
    if _num_writes(view) != num_writes:
        raise RuntimeError(
            f"step of {sampler!r} must not write into view.masked or view.eligible, but did. "
            "Change a copy: `wanted = view.eligible & ...`, not `view.eligible &= ...`."
        )
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise RuntimeError(
            f"step of {sampler!r} must return the pair (Decision, state), got a "
            f"{type(returned).__name__}. Without a state, return (Decision(...), None)."
        )
    decision, new_state = returned
    require_decision(f"step of {sampler!r}", decision, view)
    _require_facts(sampler, decision)
    require_state(new_state, len(view.tokens), owner=sampler)
    if not same_structure(state, new_state):
        raise RuntimeError(
            f"The state of {sampler!r} must keep its kind, shapes and dtypes from step to step, "
            f"got {_described(new_state)} after {_described(state)}. Return from init a state like "
            "those of step, filled with zeros if nothing is known yet."
        )
    return decision, new_state


def _num_writes(view: View) -> list[int]:
    """Returns how often torch saw a write into each mask of a view, where torch counts writes."""
    # Torch counts no writes into tensors that were made in inference mode.
    return [mask._version for mask in (view.masked, view.eligible) if not mask.is_inference()]


def require_max_steps(limit: object, *, owner: object) -> int:
    """Returns a number of steps; raises RuntimeError unless `max_steps` returned one."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise RuntimeError(
            f"max_steps of {owner!r} must return a number of steps, got {shown(limit)}."
        )
    return limit


def require_decision(source: str, decision: object, view: View) -> None:
    """Raises RuntimeError unless a decision's tensors are of the view's shape and of their kind.

    Args:
        source: The plug-in that decides, for the message.
        decision: The decision.
        view: The view that was decided.
    """
    if not isinstance(decision, Decision):
        raise RuntimeError(f"{source} must return a Decision, got a {type(decision).__name__}.")
    shape = tuple(view.tokens.shape)
    masks = (
        ("commit", decision.commit),
        ("settle", decision.settle),
        ("remask", decision.remask),
    )
    for name, mask in masks:
        _require_tensor(source, name, mask, "bool", shape, optional=name != "commit")
    _require_tensor(source, "tokens", decision.tokens, "integer", shape)


def _require_facts(sampler: Sampler, decision: Decision) -> None:
    """Raises RuntimeError if a decision contradicts what its sampler needs and gives."""
    if decision.settle is None and decision.remask is None:
        return
    if Fact.FINAL_TOKENS in sampler.gives:
        raise RuntimeError(
            f"{sampler!r} gives FINAL_TOKENS, so its step must return neither settle nor remask. "
            "Derive it from RevisingSampler, or override `gives` without Fact.FINAL_TOKENS."
        )
    if not sampler.needs & {Fact.LOGITS_OF_COMMITTED, Fact.LEAVE_ONE_OUT}:
        raise RuntimeError(
            f"{sampler!r} returns settle or remask, so it must need LOGITS_OF_COMMITTED or "
            "LEAVE_ONE_OUT. Override `needs`: super().needs | {Fact.LOGITS_OF_COMMITTED}."
        )


def _require_tensor(
    source: str,
    name: str,
    value: object,
    wanted: Literal["bool", "integer"],
    shape: tuple[int, ...],
    *,
    optional: bool = True,
) -> None:
    if value is None and optional:
        return
    if isinstance(value, Tensor):
        is_integer = not (value.is_floating_point() or value.is_complex())
        kind = "bool" if value.dtype is torch.bool else "integer" if is_integer else "other"
        if kind == wanted and tuple(value.shape) == shape:
            return
    # A tensor is described by its shape, because showing its numbers would wait for the device.
    got = _described(value) if isinstance(value, Tensor) else shown(value)
    raise RuntimeError(
        f"{source} must return {name} of kind {wanted} and shape {shape}, got {got}."
    )


def _described(state: object) -> str:
    """Names the kind of a state, with the shapes and dtypes of its tensors."""
    if isinstance(state, Tensor):
        return f"{state.dtype} {tuple(state.shape)}"
    if isinstance(state, tuple):
        return f"{type(state).__name__}({', '.join(_described(part) for part in state)})"
    return "None"
