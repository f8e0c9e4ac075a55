"""The memory of one training step over time, and its picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tf_comptrain.render import plots
from tf_comptrain.render.units import axis_of_bytes

_COLOURS = {"plain": plots.GREY, "compressed": plots.BLUE}


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
    figure = plots.figure(9, 4.5)
    axes = figure.subplots()
    highest = max(timeline.peak_bytes for timeline in timelines.values())
    unit, divisor = axis_of_bytes(highest)
    for name, timeline in timelines.items():
        at = timeline.progress()
        heights = [level / divisor for level in timeline.live_bytes]
        plots.levels(axes, at, heights, _COLOURS[name])
        peak = max(heights)
        plots.note(
            axes,
            f"{name}: peak {peak:.3g} {unit}",
            (at[heights.index(peak)], peak),
            (0, 6),
            ha="center",
            color=plots.DARK_GREY if name == "plain" else _COLOURS[name],
            fontweight="bold",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1},
        )
    axes.axvline(1, color=plots.DARK_GREY, linestyle=":", linewidth=1)
    plots.title(axes, f"{of}: memory during one training step")
    axes.set(
        xlim=(0, 2), ylim=(0, 1.12 * highest / divisor), ylabel=f"allocated over the resting level, {unit}"
    )
    axes.set_xticks((0.5, 1.5), ("forward pass", "backward pass and update"))
    axes.tick_params(axis="x", length=0)
    plots.save(figure, path)
