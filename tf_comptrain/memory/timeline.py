"""The memory of one training step over time, and its picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_COLOURS = {"plain": "#b8b8b8", "compressed": "#2a6fbb"}


class Timeline(NamedTuple):
    """Bytes of the device allocator over the resting level during one training step.

    Attributes:
      time_s: Since the first allocation, under the profiler, which slows a step down.
      live_bytes: After each allocation or release.
      forward_end_s: When the forward pass made its last tensor.
    """

    time_s: tuple[float, ...]
    live_bytes: tuple[int, ...]
    forward_end_s: float

    @property
    def peak_bytes(self) -> int:
        return max(self.live_bytes)

    def progress(self) -> list[float]:
        """Times with the forward pass from 0 to 1 and the backward pass from 1 to 2."""
        end = self.time_s[-1]
        backward_s = max(end - self.forward_end_s, 1e-9)
        return [
            t / max(self.forward_end_s, 1e-9)
            if t <= self.forward_end_s
            else 1 + (t - self.forward_end_s) / backward_s
            for t in self.time_s
        ]


def draw(timelines: Mapping[str, Timeline], of: str, path: str | Path) -> None:
    """Draws one area for each of the timelines ("plain", "compressed") of a model's step into an image file."""
    from matplotlib import colors
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    highest = max(timeline.peak_bytes for timeline in timelines.values())
    unit, divisor = ("GB", 1e9) if highest >= 1e9 else ("MB", 1e6)
    for name, timeline in timelines.items():
        colour = colors.to_rgba(_COLOURS[name])
        at = timeline.progress()
        heights = [level / divisor for level in timeline.live_bytes]
        axes.fill_between(at, heights, step="post", color=colour, alpha=0.45, linewidth=0)
        axes.step(at, heights, where="post", color=colour, linewidth=1.2)
        peak = max(heights)
        axes.annotate(
            f"{name}: peak {peak:.3g} {unit}",
            (at[heights.index(peak)], peak),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            color="#505050" if name == "plain" else colour,
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1},
        )
    axes.axvline(1, color="#808080", linestyle=":", linewidth=1)
    axes.set(
        xlim=(0, 2),
        ylim=(0, 1.12 * highest / divisor),
        ylabel=f"allocated over the resting level, {unit}",
        title=f"{of}: memory during one training step",
        xticks=(0.5, 1.5),
    )
    axes.set_xticklabels(("forward pass", "backward pass and update"))
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
