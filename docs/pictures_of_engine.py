"""The pictures of docs/architecture.md: canvas, forward, states and a round."""

from drawing import CELL, Picture


def canvas() -> Picture:
    """Returns a canvas of three rows, each in a block of its own."""
    picture = Picture(800, 396, "A canvas with three rows, each in its own block")
    left, top = 120, 60
    picture.text(20, top - 14, "note", "column")
    picture.numbers(left, top - 14, range(14))
    for number, letters in enumerate(("pppppsMsMmmmm.", "ppssssMMMM....", "pppssssssMs...")):
        y = top + 80 * number
        picture.text(20, y + 20, "name", f"row {number}")
        picture.row(left, y, letters)
    for y, start, number in ((top, 5, 0), (top + 80, 6, 1), (top + 160, 7, 1)):
        x, under = left + start * CELL, y + CELL + 3
        ends = ((x + 2, under), (x + 2, under + 6))
        picture.line(*ends, (x + 118, under + 6), (x + 118, under))
        picture.text(x + 60, under + 20, "around, large", f"block {number}, open")
    x = left + 14 * CELL + 20
    picture.text(x, top + 13, "small", "prompt_length 5, end 13", "first unsettled column: 6")
    picture.text(x, top + 93, "small", "prompt_length 2, end 10", "its block has just opened")
    picture.text(x, top + 173, "small", "prompt_length 3, end 11", "one position is unsettled")
    y = top + 236
    picture.text(20, y, "note", "position")
    picture.numbers(left + 3 * CELL, y, range(8))
    picture.text(left + 11 * CELL + 8, y, "small", "of row 2: the column less the prompt's length")
    entries = (("p", "prompt", "prompt"), ("s", "settled", "settled"), ("M", "open", "open mask"))
    more = (("m", "later", "mask of a later block"), (".", "nobody", "nobody's: never a key"))
    picture.legend(20, y + 28, (*entries, *more))
    note = "A column is the rotary position of its token and its slot in the key-value cache."
    picture.text(20, y + 82, "plain", note)
    return picture


def forward() -> Picture:
    """Returns the columns that one forward computes, row by row and as two groups."""
    picture = Picture(800, 496, "Columns, slots and positions of one forward in two groups")
    left, top = 90, 64
    title = "Three rows under DualCache(): rows 0 and 2 are inside a block, row 1 opens one."
    picture.text(20, 24, "plain", title)
    picture.numbers(left, top - 10, range(13))
    picture.text(20, top - 10, "note", "column")
    rows = (
        ("pppppsMsMmmmm", range(5, 9), "computes 4 columns, sees 13 slots"),
        ("ppssssMMMM...", range(10), "computes 10 columns, sees them"),
        ("pppssssMMsM..", range(7, 11), "computes 4 columns, sees 11 slots"),
    )
    for number, (letters, computed, note) in enumerate(rows):
        y = top + 40 * number
        picture.text(20, y + 20, "name", f"row {number}")
        picture.row(left, y, letters, computed)
        picture.text(left + 13 * CELL + 18, y + 20, "note", note)
    y = top + 134
    picture.legend(20, y, (("", "seen bold", "computed by this forward, and written to its slot"),))
    picture.text(410, y + 20, "note", "All other slots keep what an earlier forward wrote.")
    y = top + 206
    picture.text(20, y, "name", "One call of the model, two groups")
    note = "A number is the column, which is the rotary position of the token and its slot."
    picture.text(20, y + 20, "note", note)
    y += 38
    alone = ((0, range(5, 9)), (2, range(7, 11)))
    groups = (
        (alone, "keys: slots 0 to 12; row 2 does not see 11 and 12"),
        (((1, range(10)),), "keys: slots 0 to 9"),
    )
    for number, (members, keys) in enumerate(groups):
        picture.text(20, y + 20, "name", f"group {number}")
        for at, (row, columns) in enumerate(members):
            picture.text(left, y + 20 + 34 * at, "note", f"row {row}")
            for place, column in enumerate(columns):
                x = left + 50 + place * CELL
                picture.cell(x, y + 34 * at, str(column), "seen bold")
        picture.text(left + 64 + len(members[0][1]) * CELL, y + 20, "note", keys)
        y += 34 * len(members) + 12
    note = "Linear layers run over all 18 columns at once. Attention runs group by group."
    picture.text(20, y + 22, "plain", note)
    note = (
        "One padded call would compute 3 x 10 = 30 columns; two calls would read the weights twice."
    )
    picture.text(20, y + 42, "plain", note)
    return picture


_DRAFTED = ("sMMM", "ssMM", "sssM")


def states() -> Picture:
    """Returns how several states of a row share one forward, and how a draft tree is read."""
    picture = Picture(880, 700, "States of SelfVerify in one forward, and a draft tree of ARVerify")
    title = "SelfVerify(draft_steps=3): the present state of a row and two drafts"
    picture.text(20, 26, "name", f"{title}, open block in columns 6 to 9")
    _batch_of_states(picture, 62)
    _tree_of_states(picture, 218)
    picture.line((20, 464), (860, 464))
    _draft_tree(picture, 490)
    return picture


def _batch_of_states(picture: Picture, y: int) -> None:
    picture.text(20, y, "name", 'evaluate="batch"')
    picture.text(165, y, "note", "each state is a row of the forward, and has slots of its own")
    names = ("state 0: present", "state 1: a draft", "state 2: a draft")
    for number, letters in enumerate(_DRAFTED):
        at = y + 14 + 36 * number
        picture.text(20, at + 20, "note", names[number])
        slots = "a copy of them" if number else "the row's other slots"
        picture.cell(165, at, slots, "read", width=6 * CELL)
        picture.row(165 + 6 * CELL, at, letters, range(4))
    for at, *notes in (
        (34, "Row n of the state has row n of the cache. Its",
         "copies are rows n + capacity, n + 2 x capacity."),
        (80, "State 0 reads and writes as if it were alone. The",
         "other states leave no trace in the row's slots."),
    ):  # fmt: skip
        picture.text(490, y + at, "note", *notes)


def _tree_of_states(picture: Picture, y: int) -> None:
    picture.text(20, y, "name", 'evaluate="tree"')
    picture.text(
        165, y, "note", "the states are further columns of the row, and share its other slots"
    )
    picture.text(20, y + 34, "note", "one row")
    picture.cell(165, y + 14, "the row's other slots", "read", width=6 * CELL)
    picture.text(165, y + 60, "small", "rotary position", "(the row has slots 0 to 13)")
    slots = ("slots 6 to 9", "slots 14 to 17", "slots 18 to 21")
    for number, letters in enumerate(_DRAFTED):
        x = 165 + 6 * CELL + number * (4 * CELL + 12) + 8
        picture.row(x, y + 14, letters, range(4))
        picture.numbers(x, y + 60, range(6, 10))
        picture.text(x + 2 * CELL, y + 77, "around", slots[number])
    y += 112
    picture.text(20, y, "note", "who sees whom")
    for key, head in enumerate(("other slots", "state 0", "state 1", "state 2")):
        picture.text(165 + 90 * key + 45, y, "around", head)
    for query in range(3):
        at = y + 8 + 32 * query
        picture.text(20, at + 20, "small", f"columns of state {query}")
        for key in range(4):
            text, kind = ("sees", "seen") if key in (0, query + 1) else ("", "nobody")
            picture.cell(165 + 90 * key, at, text, kind, width=88)


def _draft_tree(picture: Picture, y: int) -> None:
    title = "ARVerify(target, drafting=Tree()): a draft tree in one forward of the target"
    picture.text(20, y, "name", title)
    nodes = {"a": (90, 50), "b": (50, 100), "c": (130, 100), "d": (50, 150), "e": (130, 150)}
    for parent, child in ("ab", "ac", "bd", "ce"):
        (x0, y0), (x1, y1) = nodes[parent], nodes[child]
        picture.line((x0 + 15, y + y0 + CELL), (x1 + 15, y + y1))
    picture.line((105, y + 32), (105, y + 50))
    picture.text(105, y + 28, "around, large", "text")
    for name, (x, at) in nodes.items():
        picture.cell(x, y + at, name, "open")
    sees = {"a": "a", "b": "ab", "c": "ac", "d": "abd", "e": "ace"}
    left = 300
    picture.text(left - 12, y + 28, "left of", "column")
    picture.text(left + 45, y + 28, "around", "slots of the text")
    for place, name in enumerate(sees):
        picture.text(left + 115 + place * CELL, y + 28, "mono", name)
    for line, (name, seen) in enumerate(sees.items()):
        at = y + 36 + 32 * line
        picture.text(left - 24, at + 20, "mono", name)
        picture.cell(left, at, "sees", "seen", width=90)
        for place, key in enumerate(sees):
            kind = "seen" if key in seen else "nobody"
            picture.cell(left + 100 + place * CELL, at, "", kind)
    notes = (
        "A node is a column. It sees the text, its",
        "ancestors and itself. Its rotary position is",
        "the text's end plus its depth: b and c have",
        "one position, d and e the next.",
        "The walk goes on while the token that the",
        "target writes is a child of the node.",
    )
    picture.text(570, y + 54, "note", *notes, step=19)


# y and kind of each box, the label of the arrow that leaves it, and its lines.
_STEPS = (
    (24, "box", "Opening of each row",
     "1  open_blocks", "schedule.opening(row, ...)", "for each row"),
    (120, "device", "Look: View, Window",
     "2  look", "verifier.look: forwards, then the", "view of each row"),
    (216, "device", "Decision: commit, tokens, ...",
     "3  decide", "schedule.narrowed, sampler.step,", "schedule.with_commits;",
     "left out if the verifier has decided"),
    (329, "device", "Canvas",
     "4  settle", "a new canvas: given tokens stay,", "no [MASK] is written"),
    (425, "box", "",
     "5  advance", "the one time that the CPU waits:", "first unsettled column, EOS, broken",
     "contracts; numbers of schedule,", "cache and verifier"),
)  # fmt: skip


def one_round() -> Picture:
    """Returns one round as data flow."""
    picture = Picture(880, 570, "One round as data flow")
    _around_the_round(picture)
    for y, kind, label, *lines in _STEPS:
        picture.box(300, y, 250, kind, *lines)
        if label:
            below = y + 13 + 17 * len(lines)
            picture.arrow((360, below), (360, below + 32))
            picture.text(370, below + 21, "small", label)
    picture.arrow((200, 206), (250, 206), (250, 56), (300, 56))
    picture.arrow((300, 474), (250, 474), (250, 254), (200, 254))
    _calls_of_a_round(picture)
    kinds = (("", "box", "on the CPU, in whole numbers"), ("", "device", "tensors on the device"))
    picture.legend(20, 528, kinds)
    return picture


def _around_the_round(picture: Picture) -> None:
    picture.box(20, 40, 180, "box", "RequestQueue", "put and cancel between", "two rounds")
    parts = ("rows, canvas, cache, cost,", "state of each plug-in;", "row n of each part is")
    picture.box(20, 180, 180, "box", "State", *parts, "row n of all others")
    picture.arrow((90, 104), (90, 180))
    picture.text(98, 146, "small", "join, in any round")
    picture.box(20, 380, 180, "box", "Ended", "request, output,", "forwards so far")
    picture.arrow((90, 278), (90, 380))
    picture.text(98, 325, "small", "leave: ended; rows that", "are cancelled leave too")


def _calls_of_a_round(picture: Picture) -> None:
    left = 620
    picture.text(left, 30, "name", "forward(decoder, state, Pass(...))")
    lines = ("which columns, for each row;", "hidden: columns that are not seen")
    picture.box(left, 40, 240, "box", "cache.recompute(query)", *lines)
    lines = ("groups of rows, rotary positions,", "slots, who sees whom")
    picture.box(left, 136, 240, "box", "Layout.of", *lines)
    lines = ("logits of the wanted columns;", "keys and values to their slots")
    picture.box(left, 232, 240, "device", "model.predict", *lines)
    picture.arrow((740, 104), (740, 136))
    picture.arrow((740, 200), (740, 232))
    picture.arrow((550, 140), (590, 140), (590, 72), (620, 72))
    picture.arrow((620, 264), (590, 264), (590, 166), (550, 166))
    lines = ("StepEvent: before, after, view,", "rows, requests, cost")
    picture.box(left, 442, 240, "box", "observers", *lines)
    picture.arrow((550, 474), (620, 474))
