"""Plots as image files, by matplotlib: time in lanes, memory over time."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, LIGHT_BLUE, ORANGE, BROWN, GREEN, PURPLE = (
    "#2a6fbb", "#7fb2e5", "#d98324", "#a4521c", "#4a9a5b", "#7a4fa3"
)  # fmt: skip
GREY, DARK_GREY, RED = "#b8b8b8", "#505050", "#b3261e"
_NARROW = 1 / 400  # of the time: a white edge would be all that is seen of such a bar

Bar = tuple[float, float]  # from, to


def figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, of no window; needs matplotlib (the extra "plots")."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made


def save(made: Figure, path: str | Path) -> None:
    """Writes a figure into a file, whose suffix says which kind of image."""
    made.savefig(path, dpi=150)


def svg(made: Figure) -> str:
    """A figure as a part of an HTML page: black is the page's colour of text, and nothing is behind it."""
    import matplotlib

    for axes in made.axes:
        axes.set_facecolor("none")
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        made.savefig(file, format="svg", facecolor="none", metadata={"Date": None, "Creator": None})
    drawn = file.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    # Texts have no colour of their own where it is black.
    return drawn.replace("#000000", "currentColor").replace(
        "<svg ", '<svg class="drawn" fill="currentColor" ', 1
    )


def open_axes(axes: Axes, *sides: str) -> None:
    """Leaves the frame out at these sides."""
    axes.spines[list(sides)].set_visible(False)


def title(axes: Axes, words: str) -> None:
    """Above, from the left on."""
    axes.set_title(words, loc="left", fontweight="bold", fontsize="medium")


def lanes(axes: Axes, names: Sequence[str], bars: Iterable[tuple[int, str, Sequence[Bar]]]) -> None:
    """Bars over time, in a lane each, from above.

    Args:
      axes: Empty ones.
      names: Of the lanes.
      bars: (lane, colour, bars).
    """
    drawn = [(lane, colour, [(start, end - start) for start, end in spans]) for lane, colour, spans in bars]
    longest = max((start + length for *_, sizes in drawn for start, length in sizes), default=0.0)
    for lane, colour, sizes in drawn:
        # A white edge keeps apart what follows at once; one of the bar's colour keeps a short bar visible.
        is_wide = all(length > _NARROW * longest for _, length in sizes)
        edge = "white" if is_wide else colour
        axes.broken_barh(sizes, (lane - 0.38, 0.76), facecolor=colour, edgecolor=edge, linewidth=0.4)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    open_axes(axes, "top", "right", "left")


def legend(axes: Axes, colours: Mapping[str, str]) -> None:
    """Words with their colours, right of the axes."""
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=words) for words, colour in colours.items()]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.005, 1.05), frameon=False, fontsize="small"
    )


def levels(axes: Axes, at: Sequence[float], heights: Sequence[float], colour: str) -> None:
    """What holds from a time to the next one, as an area."""
    axes.fill_between(at, heights, step="post", color=colour, alpha=0.4, linewidth=0)
    axes.step(at, heights, where="post", color=colour, linewidth=1.2)
    open_axes(axes, "top", "right")


def note(axes: Axes, words: str, at: tuple[float, float], beside: tuple[float, float], **style: Any) -> None:
    """Words beside a place of the axes, in points from it; `style` as matplotlib's annotate."""
    axes.annotate(words, at, xytext=beside, textcoords="offset points", **style)
