"""An OpenAI-compatible server on the one loop; needs the extra `serve`.

engine.py    lanes: one thread each, which owns the rows of one batch; rounds take turns
fields.py    the JSON of requests        asks.py     requests as rows
text.py      tokens as text              answers.py  the JSON of answers
read.py      typed reads                 metrics.py  counters
errors.py    refusals in OpenAI's shape  guard.py    key, host and size of a request
api.py       the routes                  server.py   the process
web.py       the page at /
"""
