"""Integers between two bounds as a regular expression."""


def integers_between(least: int | None, most: int | None) -> str:
    """Returns an expression of the integers within some bounds, without leading zeros.

    Args:
        least: The smallest one; `None`: no bound.
        most: The largest one, at least `least`; `None`: no bound.
    """
    parts = []
    if least is None or least < 0:
        smallest = 1 if most is None or most >= 0 else -most
        if least is None or -least >= smallest:
            sizes = _naturals(smallest, None if least is None else -least)
            parts.append(f"-{sizes}")
    if most is None or most >= 0:
        parts.append(_naturals(max(0, least or 0), most))
    return f"(?:{'|'.join(parts)})"


def _naturals(least: int, most: int | None) -> str:
    """Returns an expression of the integers from `least`, at least 0, to `most`."""
    num_digits = len(str(least if most is None else most))
    parts = []
    for length in range(len(str(least)), num_digits + 1):
        first = max(least, 10 ** (length - 1) if length > 1 else 0)
        last = 10**length - 1 if most is None else min(most, 10**length - 1)
        parts += _of_one_length(str(first), str(last))
    if most is None:
        parts.append(f"[1-9][0-9]{{{num_digits},}}")
    return f"(?:{'|'.join(parts)})"


def _of_one_length(first: str, last: str) -> list[str]:
    """Returns expressions of the numbers from one to another one of as many digits."""
    if first == last:
        return [first]
    rest = len(first) - 1
    if first[0] == last[0]:
        return [first[0] + part for part in _of_one_length(first[1:], last[1:])]
    low, high = int(first[0]), int(last[0])
    below, above = [], []
    # The first digits whose other digits are free are one class.
    if first[1:] != "0" * rest:
        below = [first[0] + part for part in _of_one_length(first[1:], "9" * rest)]
        low += 1
    if last[1:] != "9" * rest:
        above = [last[0] + part for part in _of_one_length("0" * rest, last[1:])]
        high -= 1
    free = [f"[{low}-{high}]" + (f"[0-9]{{{rest}}}" if rest else "")] if low <= high else []
    return [*below, *free, *above]
