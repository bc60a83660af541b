"""The checker of types at run time, for `make test-all` and a part of `make test`."""

from beartype import BeartypeConf, beartype

# A whole number serves where a float is wanted, as in static checks.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
