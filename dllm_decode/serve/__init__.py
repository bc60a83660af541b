"""An OpenAI-compatible server on the one loop; needs the extra `serve`.

lanes.py     lanes, one batch each; one thread runs their rounds in turn
jobs.py      requests of the loop, and the events that their owners are told
service.py   the model that is served, and channels for events to a request
fields.py    the JSON of requests        parts.py      messages, tools and forms in it
forms.py     forms of answers            compiler.py   forms as automata, in turns
compiler_process.py   the process that compiles them
warm_up.py   recorded graphs, before clients wait for them
chats.py     messages as token ids       choices.py    requests as rows
calls.py     calls in answers            exchange.py   the JSON of answers
responses.py   requests and answers as items   errors.py     refusals in OpenAI's shape
guard.py     key, host and size of a request
metrics.py   counters                    limits.py     bounds
log.py       lines of the log            documentation.py  the page of all paths
weights.py   new weights
api.py       the routes                  server.py     the process
sockets.py   the socket
"""
