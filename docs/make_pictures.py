"""Draws the pictures of decodes in docs/img: caches, schedules, a verifier, a uniform-state model.

    PYTHONPATH=. python docs/make_pictures.py

The decodes run while the pictures are drawn. The other pictures of the folder have no script: their
SVG is edited as it is.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from dllm_decode import (
    DualCache,
    ForwardInputs,
    MultiBlock,
    NoCache,
    NoVerifier,
    PrefixCache,
    SelfVerify,
    Sequential,
    StepEvent,
    generate,
    load_model,
)
from samplers import AcceptAndRenoise, ConfidenceThreshold, FixedSchedule, Sampler

CELL = 30
IMAGES = Path(__file__).parent / "img"
# By kind of text the class of its colour and face, its size, and what x is.
_TEXTS = {
    "plain": ("", 13, "start"),
    "name": ("name", 13, "start"),
    "note": ("note", 13, "start"),
    "left of": ("note", 12, "end"),
    "around": ("note", 12, "middle"),
    "mono": ("mono", 13, "middle"),
}
_QUESTION = (
    "Emma has 12 apples. Emma finds 30 more apples and then gives 8 apples to Ben. "
    "How many apples does Emma have now?"
)
# `mini-uniform` is unsure of its first sum until the last steps.
_UNSURE = (
    "emma has 76 apples . emma finds 2 more apples and then gives 72 apples to maria . "
    "how many apples does emma have now ?"
)
_RULE = AcceptAndRenoise(num_steps=8)


class Picture:
    """A picture as SVG, in light and dark colours: shapes in the order in which they are drawn."""

    def __init__(self, width: int, height: int, title: str) -> None:
        size = f'width="{width}" height="{height}"'
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">',
            f"<title>{escape(title)}</title>",
            f"<style>{(IMAGES / 'pictures.css').read_text(encoding='utf-8')}</style>",
            f'<rect {size} rx="8" class="paper"/>',
        ]

    def svg(self) -> str:
        """Returns the picture as a file; its colours follow the reader's light or dark mode."""
        return "\n".join([*self._parts, "</svg>\n"])

    def text(self, x: float, y: float, kind: str, text: str) -> None:
        """Writes a line of text; y is its base line."""
        name, size, anchor = _TEXTS[kind]
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" '
            f'text-anchor="{anchor}" class="{name}">{escape(text)}</text>'
        )

    def cell(self, x: float, y: float, text: str, kind: str, width: float = CELL) -> None:
        """Draws a square with a short text in it."""
        size = f'width="{width - 1:g}" height="{CELL - 1}"'
        self._parts.append(f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" {size} class="{kind}"/>')
        self.text(x + width / 2, y + 20, "mono", text)

    def square(self, x: float, y: float, size: float, kind: str) -> None:
        """Draws a small square without a text."""
        inner = f'width="{size - 1:g}" height="{size - 1:g}"'
        self._parts.append(f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" {inner} class="{kind}"/>')

    def legend(self, x: float, y: float, entries: Sequence[tuple[str, str, str]]) -> None:
        """Explains kinds of cells, in one line."""
        for letter, kind, meaning in entries:
            self.cell(x, y, letter, kind)
            self.text(x + CELL + 7, y + 20, "plain", meaning)
            x += CELL + 22 + 7 * len(meaning)


def _decode(sampler: Sampler[Any], **options: Any) -> tuple[list[StepEvent], list[list[int]]]:
    """Returns the steps of a decode of 32 tokens, and the columns that each forward computed."""
    model, tokenizer = load_model("mini")
    events: list[StepEvent] = []
    computed: list[list[int]] = []
    plain = model.predict

    def predict(inputs: ForwardInputs) -> Any:
        computed.append(inputs.positions[0].tolist())
        return plain(inputs)

    model.predict = predict
    generate(
        model, tokenizer, _QUESTION, sampler, gen_length=32, observers=[events.append], **options
    )
    return events, computed


def caches() -> Picture:
    """Returns which columns each forward computes, under three cache policies."""
    picture = Picture(860, 590, "The columns that each forward computes, under three caches")
    options = {"block_length": 8}
    note = "One answer of mini: 28 columns of prompt, 32 of answer in blocks of 8; FixedSchedule(4)"
    picture.text(20, 26, "plain", f"{note}: 2 tokens a forward.")
    y = 66
    for policy in (NoCache(), PrefixCache(), DualCache()):
        _, computed = _decode(FixedSchedule(4), cache=policy, **options)
        total = sum(len(columns) for columns in computed)
        picture.text(20, y, "name", f"{type(policy).__name__}()")
        picture.text(130, y, "note", f"{total} columns in {len(computed)} forwards")
        for forward, columns in enumerate(computed):
            for column in range(60):
                kind = "seen" if column in columns else "nobody"
                picture.square(90 + 11 * column, y + 8 + 11 * forward, 11, kind)
        picture.text(84, y + 18, "left of", "forward 1")
        picture.text(84, y + 8 + 11 * len(computed), "left of", str(len(computed)))
        y += 30 + 11 * len(computed)
    for column in (0, 28, 36, 44, 52):
        picture.text(90 + 11 * column + 5, y - 2, "around", str(column))
    picture.text(84, y - 2, "left of", "column")
    picture.legend(90, y + 12, (("", "seen", "computed"), ("", "nobody", "read from the cache")))
    return picture


def schedules() -> Picture:
    """Returns in which rounds each block is open, under two block schedules."""
    picture = Picture(860, 330, "The rounds in which each block is open, under two schedules")
    note = "One answer of mini, 32 tokens; ConfidenceThreshold(0.9999). Numbers: tokens committed."
    picture.text(20, 26, "plain", note)
    y = 60
    for blocks in (Sequential(8), MultiBlock(8, open_at=0.5, force_at=0.95)):
        events, _ = _decode(ConfidenceThreshold(0.9999), blocks=blocks)
        name = "Sequential(8)" if isinstance(blocks, Sequential) else "MultiBlock(8, open_at=0.5)"
        picture.text(20, y, "name", f"{name}: {len(events)} rounds")
        for block in range(3):
            picture.text(84, y + 28 + CELL * block, "left of", f"block {block + 1}")
        for number, event in enumerate(events):
            prompt_length = int(event.before.prompt_lengths[0])
            opened = event.columns[0][event.view.eligible[0]].tolist()
            changed = event.before.unsettled[0] & ~event.after.unsettled[0]
            settled = changed.nonzero().flatten().tolist()
            for block in range(3):
                own = range(prompt_length + 8 * block, prompt_length + 8 * block + 8)
                if any(column in own for column in opened):
                    count = sum(column in own for column in settled)
                    picture.cell(90 + CELL * number, y + 8 + CELL * block, str(count), "open")
        y += 126
    picture.text(
        90, y, "note", "A square is a round, from left to right. The answer ends in block 3."
    )
    return picture


def verifier() -> Picture:
    """Returns how many steps each forward is good for, without and with a verifier."""
    picture = Picture(860, 290, "Steps of each forward, without and with a verifier")
    note = "One answer of mini, 32 tokens in blocks of 8; FixedSchedule(8): one token a step."
    picture.text(20, 26, "plain", note)
    y = 56
    for policy, name in ((NoVerifier(), "NoVerifier()"), (SelfVerify(4), "SelfVerify(4)")):
        events, computed = _decode(FixedSchedule(8), verifier=policy, block_length=8)
        picture.text(20, y, "name", f"{name}: {len(events)} steps, {len(computed)} forwards")
        for step, event in enumerate(events):
            before = events[step - 1].forwards if step else 0
            kind = "open" if event.forwards > before else "settled"
            picture.cell(20 + CELL * step, y + 8, str(event.forwards), kind)
        y += 66
    picture.text(20, y, "note", "A number is the forward that the step was computed in.")
    entries = (("1", "open", "first step of a forward"), ("1", "settled", "a draft that was right"))
    picture.legend(20, y + 12, entries)
    note = "Both give the same tokens. A draft counts if the sampler, given the logits that the"
    picture.text(20, y + 64, "plain", note)
    note = "same forward computed for the drafted state, goes on as drafted."
    picture.text(20, y + 81, "plain", note)
    return picture


def uniform_state() -> Picture:
    """Returns the canvases of a uniform-state model, with the accepted positions in colour."""
    lines = _canvases()
    left, width, height = 130, 92, 34
    size = (left + width * len(lines[0][0]) + 20, 70 + height * len(lines))
    picture = Picture(*size, "A canvas of a uniform-state model, step by step")
    picture.text(20, 30, "note", "Amber: accepted in this step; grey: random; green: the answer.")
    for number, (tokens, accepted) in enumerate(lines):
        name = "noise" if number == 0 else f"after step {number}"
        name = "answer" if not accepted else name
        picture.text(20, 70 + height * number, "name", name)
        for at, token in enumerate(tokens):
            kind = ("open" if accepted[at] else "later") if accepted else "settled"
            picture.cell(left + width * at, 50 + height * number, token, kind, width)
    return picture


def _canvases() -> list[tuple[list[str], list[bool]]]:
    """Returns the first canvas and that after each step, and which positions the step accepted."""
    model, tokenizer = load_model("mini-uniform", device="cpu")
    found: list[tuple[list[str], list[bool]]] = []

    def watch(event: StepEvent) -> None:
        before, after = (
            tokenizer.convert_ids_to_tokens(canvas.tokens[0, event.columns[0]].tolist())
            for canvas in (event.before, event.after)
        )
        if not found:
            found.append((before, [False] * len(before)))
        left = (_RULE.num_steps + 1 - len(found)) / _RULE.num_steps
        temperature = _RULE.t_min + (_RULE.t_max - _RULE.t_min) * left
        tempered = event.view.with_logits(event.view.logits / temperature)
        accepted = [] if event.ended[0] else _RULE.accepted(tempered)[0].tolist()
        found.append((after, accepted))

    generate(model, tokenizer, _UNSURE, _RULE, gen_length=8, seed=0, observers=[watch])
    return found


PICTURES = {
    "caches": caches,
    "schedules": schedules,
    "verifier": verifier,
    "uniform_state": uniform_state,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
