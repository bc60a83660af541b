"""The checker of types at run time, for `make test-all` and a part of `make test`."""

from beartype import BeartypeConf, beartype

# An int is accepted where a float is declared, as in static checks.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
