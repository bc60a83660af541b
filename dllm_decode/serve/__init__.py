"""An OpenAI-compatible server on the one loop; needs the extra `serve`.

lanes.py             lanes, one batch each; one thread runs their rounds in turn
jobs.py              requests of the loop, and the events that their owners are told
service.py           the model that is served, and channels for events to a request
request_fields.py    the JSON of requests
request_parts.py     messages, tools and forms in it
responses.py         requests and answers of /v1/responses, whose parts are items
chats.py             messages as token ids
answer_forms.py      forms of answers
compiler.py          compiles them into automata, in turns
compiler_process.py  the process that compiles
choices.py           the answers of a request as rows
message_readers.py   text as messages: content, calls and reasoning
exchange.py          the JSON of answers
errors.py            refusals in OpenAI's shape
weights.py           new weights
warm_up.py           recorded graphs, before clients wait for them
limits.py            bounds
metrics.py           counters
log.py               lines of the log
api.py               the routes
documentation.py     the page of all paths and fields
guard.py             key, host and size of a request
server.py            the process
sockets.py           the socket
"""
