"""Pictures for users: the loop, caches, schedules, a verifier, a stream, and which sampler to take.

Those of caches, schedules and the verifier show decodes of `mini` that run while they are drawn.
"""

from typing import Any

from drawing import CELL, Picture

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
from samplers import ConfidenceThreshold, FixedSchedule, Sampler

_QUESTION = (
    "Emma has 12 apples. Emma finds 30 more apples and then gives 8 apples to Ben. "
    "How many apples does Emma have now?"
)


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


def loop() -> Picture:
    """Returns the loop that all methods share, and which plug-in decides what."""
    picture = Picture(860, 300, "The loop: which plug-in decides what")
    for number, letters in enumerate(("ppppMMMMmmmm", "ppppsMsMmmmm")):
        picture.row(20 + 460 * number, 20, letters)
    picture.arrow((388, 35), (472, 35))
    picture.text(430, 26, "around", "one round")
    steps = (
        ("box", "1  block schedule", "which part of the", "answer is open"),
        ("box", "2  verifier", "which forwards to run:", "one, or one with drafts"),
        ("device", "3  cache, model", "which columns run;", "logits of the open part"),
        ("box", "4  sampler", "which positions to", "commit, with which token"),
    )
    for number, (kind, *lines) in enumerate(steps):
        x = 20 + 210 * number
        picture.box(x, 90, 180, kind, *lines)
        if number:
            picture.arrow((x - 30, 120), (x, 120))
    picture.arrow((740, 154), (740, 200), (110, 200), (110, 154))
    picture.text(425, 192, "around", "again, until no mask is left or the answer has ended")
    entries = (("p", "prompt", "prompt"), ("s", "settled", "settled"), ("M", "open", "open mask"))
    picture.legend(20, 230, (*entries, ("m", "later", "mask of a later block")))
    note = "Schedule, verifier, cache and sampler are plug-ins; a verifier may also decide itself."
    picture.text(20, 286, "plain", note)
    return picture


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
        name = f"{type(policy).__name__}()"
        picture.text(20, y, "name", name)
        told = f"{total} columns in {len(computed)} forwards"
        picture.text(130, y, "note", told)
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
            changed = (event.before.unsettled[0] & ~event.after.unsettled[0]).nonzero()
            settled = changed.flatten().tolist()
            for block in range(3):
                own = range(prompt_length + 8 * block, prompt_length + 8 * block + 8)
                count = len([column for column in settled if column in own])
                is_open = any(column in own for column in opened)
                if is_open:
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
    notes = ("Both give the same tokens. A draft counts if the sampler, given the logits that the",
             "same forward computed for the drafted state, goes on as drafted.")  # fmt: skip
    picture.text(20, y + 64, "plain", *notes)
    return picture


# x, y and width of each box, its kind and its lines.
_CHOICES = (
    (290, 16, 280, "box", "Is one token a step fast enough?", "a forward for each token"),
    (600, 16, 240, "settled", "FixedSchedule(block_length)", "the reference of every table"),
    (290, 130, 280, "box", "Was the model trained to edit?", "LLaDA 2.1"),
    (600, 130, 240, "settled", "JointThreshold() or T2M()", "rewrite or re-mask tokens"),
    (290, 220, 280, "box", "Was it distilled for few steps?", "dParallel, d3LLM"),
    (600, 220, 240, "settled", "EntropyThreshold(0.5)", "as its authors decode it"),
    (290, 310, 280, "box", "Have you questions with answers?", "some 200 of your own task"),
    (600, 310, 240, "settled", "dllm-decode eval run", "and the advice of its report"),
    (290, 400, 280, "settled", "ConfidenceThreshold(0.9)", "also good: Hierarchy(),",
     "CreditDecoding(ConfidenceThreshold())"),
)  # fmt: skip


def which_sampler() -> Picture:
    """Returns a tree of questions whose leaves are samplers."""
    picture = Picture(860, 490, "Which sampler?")
    for x, y, width, kind, *lines in _CHOICES:
        picture.box(x, y, width, kind, *lines)
    for y in (16, 130, 220, 310):
        picture.arrow((570, y + 24), (600, y + 24))
        picture.text(585, y + 18, "around", "yes")
        below = 130 if y == 16 else y + 90
        picture.arrow((430, y + 47), (430, below))
        picture.text(440, y + 47 + (below - y - 47) / 2 + 4, "small", "no")
    picture.text(20, 40, "name", "Start here")
    picture.arrow((100, 36), (290, 36))
    notes = (
        "Every sampler runs with every",
        "cache and block schedule that",
        "fits; others are refused.",
    )
    picture.text(20, 150, "note", *notes)
    notes = (
        "SelfVerify() keeps a sampler's",
        "tokens and saves forwards.",
        "ARVerify(target) writes a causal",
        "model's text instead.",
    )
    picture.text(20, 240, "note", *notes)
    return picture


_ANSWER = "emma now has 12 + 30 = 42 . after giving some away emma has 42 - 8 = 34 . #### 34"
# Positions of the answer that are masked after each round: mini, ConfidenceThreshold(0.999),
# gen_length 32, on the question of the README.
_MASKED = ((7, 15, 19, 22), (15, 19, 22), (19, 22), (19,), ())


def stream() -> Picture:
    """Returns an answer after each round, and the chunks of text that its stream has."""
    picture = Picture(860, 308, "An answer after each round, and the chunks of its stream")
    words, num_sent = _ANSWER.split(), 0
    for number, masked in enumerate(_MASKED):
        x, y = 84.0, 20 + 46 * number
        picture.text(20, y + 20, "name", f"round {number + 1}")
        first = min(masked, default=len(words))
        for at, word in enumerate(words):
            is_new = num_sent <= at < first
            kind = "later" if at in masked else "settled" if at < first else "open"
            width = 11 + 8 * len(word)
            picture.cell(x, y, "" if at in masked else word, kind + " bold" * is_new, width)
            x += width + 1
        num_sent = first
    entries = (("", "settled bold", "sent in this round"), ("", "settled", "sent before"))
    more = (("", "open", "settled, but not sent yet"), ("", "later", "masked"))
    picture.legend(20, 262, (*entries, *more))
    return picture
