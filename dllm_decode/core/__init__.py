"""The ground: modules that every other package may use.

canvas.py         tokens of rows, and which of them are settled
rows.py           rows in numbers that the host knows; columns.py: sets of columns of a row
requests.py       requests and their queue; prompts.py: prompts as token ids
window.py         consecutive columns of each row
passes.py         the description of a forward
model.py          the contract of a model
options.py        options of a decode; other_names.py: their names in other libraries
stopping.py       rules that end a row
automaton.py      a set of texts
commits.py        the step and log-probability of each token
output.py         the result of a decode
observers.py      the event of a step; recorders.py: observers that record a decode
files.py          files that are written whole or not at all
sending.py        from the host to the device; sizes.py: sizes that are rounded up
user_warnings.py  warnings that point at the user's line
"""
