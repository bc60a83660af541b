"""The loop; docs/architecture.md says in which order to read it.

decoding.py                decode and decode_many, for callers who have all prompts
decoder.py                 model, plug-ins and options of a decode
make_requests.py           from prompts to requests
loop.py                    rows join, take steps and leave
round.py                   one round
join.py                    rows that join and leave
ended.py                   rows whose answer has ended
state.py                   everything that changes during a decode
commit_state.py            the step and log-probability of each token
look.py                    one forward, and the sampler's view of it
look_at_noise.py           the same for uniform-state models
look_without_own_token.py  the same for samplers that judge a token without itself
views.py                   the view on which a sampler decides
row_options.py             options that differ from row to row, in it
forward.py                 calls the model
layout.py                  the columns of a forward
inputs.py                  its tensors
packing.py                 several branches of a row in one row of a forward
decide.py                  asks the sampler
settle.py                  carries a decision out
step_event.py              what observers see
verifier.py                the contract of a verifier
no_verifier.py             the default: one forward a round
default_sampler.py         the sampler of a model if none is chosen
checks.py                  checks of what plug-ins return
breach_errors.py           errors of rows in which a rule was broken
compatibility.py           refuses parts that do not fit together
uniform_state_checks.py    refuses options that uniform-state models do not have
constraints/               tokens that a set of texts forces
"""
