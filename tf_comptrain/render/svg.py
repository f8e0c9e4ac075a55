"""Plots as SVG, for a page that needs nothing else: texts at the pointer, colours of light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple, Protocol

# Told apart by people who see colours differently (Okabe and Ito, 2008), then by three more.
_COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f", "#5e3c99", "#b2182b"
)  # fmt: skip
_WIDTH, _HEIGHT = 620, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 26, 14, 52
_RADIUS = 4.5
_STEPS = (1, 2, 5)
_BESIDE_ZERO = 0.06  # of an axis: the label of zero has no room for another there


class Point(NamedTuple):
    """A point of a scatter plot.

    Attributes:
      x, y: Where; both above 0, or 0 for a place at the axis.
      group: What its colour stands for.
      words: Shown where the pointer rests on it.
    """

    x: float
    y: float
    group: str
    words: str


class Line(NamedTuple):
    """A line of a plot over time.

    Attributes:
      values: From 0 up, each of an equal part of the time.
      colour: As CSS names it.
      words: What it shows.
    """

    values: Sequence[float]
    colour: str
    words: str


class _Axis(Protocol):
    def place(self, value: float) -> float:
        """From 0 to 1."""

    def ticks(self) -> list[float]:
        """Round values within it."""


def colours(groups: Sequence[str]) -> dict[str, str]:
    """A colour for each group."""
    return {group: _COLOURS[place % len(_COLOURS)] for place, group in enumerate(groups)}


def scatter(points: Sequence[Point], x_words: str, y_words: str, colour_of: dict[str, str]) -> str:
    """A scatter plot with logarithmic axes."""
    x_axis, y_axis = _Logarithmic([p.x for p in points]), _Logarithmic([p.y for p in points])
    return _plot(x_axis, y_axis, x_words, y_words) + "".join(
        f'<circle cx="{_x(x_axis, point.x):.1f}" cy="{_y(y_axis, point.y):.1f}" r="{_RADIUS}" '
        f'fill="{colour_of[point.group]}"><title>{escape(point.words)}</title></circle>'
        for point in points
    ) + "</svg>"  # fmt: skip


def lines(series: Sequence[Line], x_words: str, y_words: str) -> str:
    """Steps over a time that is 100 long, from 0 up."""
    x_axis, y_axis = _Linear(100), _Linear(max(value for line in series for value in line.values))
    parts = [_plot(x_axis, y_axis, x_words, y_words)]
    for line in series:
        width = 100 / len(line.values)
        path = []
        for place, value in enumerate(line.values):
            left, right = _x(x_axis, place * width), _x(x_axis, (place + 1) * width)
            path.append(f"{left:.1f},{_y(y_axis, value):.1f} {right:.1f},{_y(y_axis, value):.1f}")
        parts.append(
            f'<polyline points="{" ".join(path)}" fill="none" stroke="{line.colour}" stroke-width="1.6">'
            f"<title>{escape(line.words)}</title></polyline>"
        )
    return "".join([*parts, "</svg>"])


def _plot(x_axis: _Axis, y_axis: _Axis, x_words: str, y_words: str) -> str:
    """The beginning of a picture: its axes and what stands beside them."""
    parts = [
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(y_words)} against '
        f'{escape(x_words)}">'
    ]
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for value in x_axis.ticks():
        x = _x(x_axis, value)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    for value in y_axis.ticks():
        y = _y(y_axis, value)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text class="axis" x="{middle}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(x_words)}</text>'
    )
    parts.append(
        f'<text class="axis" transform="translate(14 {(_TOP + bottom) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_words)}</text>"
    )
    return "".join(parts)


def legend(colour_of: dict[str, str]) -> str:
    """The groups with their colours."""
    names = "".join(
        f'<span><i style="background:{colour}"></i>{escape(group)}</span>'
        for group, colour in colour_of.items()
    )
    return f'<p class="legend">{names}</p>'


def heat(value: float, largest: float) -> str:
    """A background for a value from 0 to the largest, and a colour for text on it."""
    share = min(value / largest, 1.0) if largest > 0 else 0.0
    lightness = 97 - 50 * share
    return f"background:hsl(16 85% {lightness:.0f}%);color:#1b1b1b"


class _Logarithmic:
    """A logarithmic axis that holds all values; zeros are at its lower end."""

    def __init__(self, values: Sequence[float]):
        above = [value for value in values if value > 0] or [1.0]
        low = min(above) / (3.0 if min(values, default=1.0) <= 0 else 1.15)
        self.has_zero = min(values, default=1.0) <= 0
        self.low, self.high = math.log10(low), math.log10(max(above) * 1.15)

    def place(self, value: float) -> float:
        """From 0 to 1."""
        if value <= 0:
            return 0.0
        return (math.log10(value) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Round values within it, fewer where it is long, and the place of zeros."""
        steps = _STEPS if self.high - self.low < 2.5 else (1,)
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        values = [step * 10.0**decade for decade in decades for step in steps]
        within = [value for value in values if self.low <= math.log10(value) <= self.high]
        if not self.has_zero:
            return within
        return [0.0, *(value for value in within if self.place(value) >= _BESIDE_ZERO)]


class _Linear:
    """An axis from 0 to a value."""

    def __init__(self, high: float):
        self.high = max(high, 1e-9)

    def place(self, value: float) -> float:
        """From 0 to 1."""
        return value / self.high

    def ticks(self) -> list[float]:
        """Round values within it, five to ten."""
        decade = 10.0 ** math.floor(math.log10(self.high / 5))
        step = max(size * decade for size in _STEPS if size * decade <= self.high / 5)
        return [step * k for k in range(int(self.high / step) + 1)]


def _x(axis: _Axis, value: float) -> float:
    return _LEFT + axis.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(axis: _Axis, value: float) -> float:
    return _HEIGHT - _BOTTOM - axis.place(value) * (_HEIGHT - _TOP - _BOTTOM)
