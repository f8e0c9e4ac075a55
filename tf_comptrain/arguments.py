"""Arguments that are numbers: whole ones, real ones, and bytes, which may be text such as "2GB"."""

from __future__ import annotations

import math
import numbers
import operator
import re
from typing import Any

_LIMITS = {
    "above": ("above", operator.gt),
    "least": ("of at least", operator.ge),
    "below": ("below", operator.lt),
    "most": ("of at most", operator.le),
}
_PREFIXES = "KMGT"


def whole(name: str, value: Any, least: int = 1, remedy: str = "") -> int:
    """An integer of at least `least`, NumPy's included, as Python's.

    Args:
      name: Of the argument, for the message.
      value: As it was given.
      least: The smallest that will do.
      remedy: What to do instead: a sentence for the end of the message.

    Raises:
      ValueError: It is none; a bool is none either.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(_message(name, f"an integer of at least {least}", value, remedy))
    return int(value)


def real(name: str, value: Any, **limits: float) -> float:
    """A finite number within limits, NumPy's included, as Python's.

    Args:
      name: Of the argument, for the message.
      value: As it was given.
      limits: Of `above`, `least`, `below` and `most` those that hold.

    Raises:
      ValueError: It is none; a bool is none either.
    """
    fits = is_real(value) and _is_finite(value)
    if not (fits and all(_LIMITS[kind][1](value, limit) for kind, limit in limits.items())):
        rule = " and ".join(f"{_LIMITS[kind][0]} {limit:g}" for kind, limit in limits.items())
        raise ValueError(_message(name, f"a number {rule}", value))
    return float(value)


def is_real(value: Any) -> bool:
    """Whether it is a number, Python's or NumPy's, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond floating point
        return False


def size_in_bytes(name: str, value: Any) -> int:
    """Bytes: a positive number, or text such as "2GB" (2e9), "500 MB" or "2GiB" (2 * 2^30).

    Raises:
      ValueError: It is neither.
    """
    found: Any = value
    if isinstance(value, str):
        match = re.fullmatch(rf"(\d+(?:\.\d+)?)\s*(?:([{_PREFIXES}])(I?))?B?", value.strip().upper())
        found = None
        if match is not None:
            number, prefix, binary = match.groups(default="")
            unit = 1024 if binary else 1000
            found = float(number) * unit ** (_PREFIXES.find(prefix) + 1 if prefix else 0)
    if not (is_real(found) and _is_finite(found) and found >= 1):
        raise ValueError(_message(name, 'bytes: a positive number, or text such as "2GB" or "500MB"', value))
    return int(found)


def _message(name: str, rule: str, value: Any, remedy: str = "") -> str:
    parts = (
        f"`{name}` must be {rule}.",
        remedy,
        f"Received: {repr(value)[:80]} (of type {type(value).__name__}).",
    )
    return " ".join(part for part in parts if part)
