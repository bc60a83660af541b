"""Draws the picture of docs/uniform_state.md from a decode of the tiny DiffusionGemma of the tests.

PYTHONPATH=. python docs/draw_uniform_state.py
"""

from pathlib import Path

from drawing import IMAGES, Picture

from dllm_decode import StepEvent, decode, load_model
from samplers import AcceptAndRenoise

_MODEL = Path(__file__).parents[1] / "tests" / "golden" / "data" / "uniform_state" / "model_a"
_PROMPT = (179, 482, 152, 268, 70, 32, 493, 324, 33, 203, 434, 168)
_SAMPLER = AcceptAndRenoise(num_steps=8, confidence_threshold=0.05)
_LEFT, _CELL, _ROW = 150, 40, 34
_KINDS = {True: "open", False: "later"}


def canvases() -> list[tuple[list[int], list[bool]]]:
    """Returns the first canvas and that after each step, and which positions the step accepted."""
    model, _ = load_model(_MODEL, device="cpu", dtype="float32", tokenizer="optional")
    found: list[tuple[list[int], list[bool]]] = []
    columns = slice(len(_PROMPT), len(_PROMPT) + 16)

    def watch(event: StepEvent) -> None:
        if not found:
            found.append((event.before.tokens[0, columns].tolist(), [False] * 16))
        left = (_SAMPLER.num_steps + 1 - len(found)) / _SAMPLER.num_steps
        temperature = _SAMPLER.t_min + (_SAMPLER.t_max - _SAMPLER.t_min) * left
        tempered = event.view.with_logits(event.view.logits / temperature)
        accepted = [] if event.ended[0] else _SAMPLER.accepted(tempered)[0].tolist()
        found.append((event.after.tokens[0, columns].tolist(), accepted))

    decode(model, [list(_PROMPT)], _SAMPLER, gen_length=16, seed=3, observers=[watch])
    return found


def picture() -> str:
    """Returns the picture: a line for each canvas, with the accepted positions in colour."""
    lines = canvases()
    size = (_LEFT + _CELL * len(lines[0][0]) + 20, 70 + _ROW * len(lines))
    drawn = Picture(*size, "A canvas of a uniform-state model, step by step")
    drawn.text(
        20, 30, "note", "Token ids. Amber: accepted in this step; grey: random; green: the answer."
    )
    for number, (tokens, accepted) in enumerate(lines):
        name = "noise" if number == 0 else f"after step {number}"
        name = "answer" if not accepted else name
        drawn.text(20, 70 + _ROW * number, "name", name)
        for at, token in enumerate(tokens):
            kind = _KINDS[accepted[at]] if accepted else "settled"
            drawn.cell(_LEFT + _CELL * at, 50 + _ROW * number, str(token), kind, _CELL)
    return drawn.svg()


if __name__ == "__main__":
    (IMAGES / "uniform_state.svg").write_text(picture(), encoding="utf-8")
