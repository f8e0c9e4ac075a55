"""Bytes, seconds and signals for readers."""

from __future__ import annotations

_SIZES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_ROUNDED = 0.9995  # what three digits make 1 of


def format_bytes(count: float | None) -> str:
    """1234567 -> '1.23 MB'; None -> ''."""
    if count is None:
        return ""
    for unit, divisor in _SIZES:
        if abs(count) >= _ROUNDED * divisor:
            value = count / divisor
            return f"{value:.3g} {unit}" if abs(value) < _ROUNDED * 1000 else f"{value:,.0f} {unit}"
    return f"{count:.0f} B"


def format_seconds(seconds: float | None) -> str:
    """0.0123 -> '12.3 ms'; None -> ''."""
    if seconds is None:
        return ""
    for unit, divisor in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= divisor:
            return f"{seconds / divisor:.4g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


def axis_of_bytes(highest: float) -> tuple[str, float]:
    """(unit, bytes in it) of an axis up to so many bytes."""
    return ("GB", 1e9) if highest >= 1e9 else ("MB", 1e6)


def axis_of_seconds(longest: float) -> tuple[str, float]:
    """(unit, seconds in it) of an axis up to so many seconds."""
    return ("s", 1.0) if longest >= 1 else ("ms", 1e-3)
