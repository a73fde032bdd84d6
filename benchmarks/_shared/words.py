"""Numbers as they stand in sentences."""

from collections.abc import Iterable


def number(value: float, digits: int = 2) -> str:
    """A number with so many digits after the point, and a minus sign of print."""
    text = f"{value:.{digits}f}"
    return (text.removeprefix("-") if float(text) == 0 else text).replace("-", "−")


def with_error(pair: Iterable[float], digits: int = 2) -> str:
    """A mean and its error."""
    return " ± ".join(number(value, digits) for value in pair)


def span(values: Iterable[float], digits: int = 2) -> str:
    """The least and the largest of some numbers, or the one that all are."""
    found = sorted(values)
    ends = dict.fromkeys(number(value, digits) for value in (found[0], found[-1])) if found else ()
    return " to ".join(ends) or "unknown"
