"""The picture of a `MemoryReport`: bytes alive over forward and backward pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

if TYPE_CHECKING:
    from tf_comptrain.memory.saved_report import MemoryReport

_COLOURS = {"plain": "#b8b8b8", "compressed": "#2a6fbb"}


def draw(report: MemoryReport, path: str | Path) -> None:
    """Draws one area for each of the report's timelines, the larger one behind."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    highest = max(timeline.peak_bytes for timeline in report.timelines.values())
    unit, divisor = ("GB", 1e9) if highest >= 1e9 else ("MB", 1e6)
    for name, timeline in report.timelines.items():
        colour = matplotlib.colors.to_rgba(_COLOURS[name])
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
        title=f"{report.model}, batch {report.batch_size}: memory during one training step",
        xticks=(0.5, 1.5),
    )
    axes.set_xticklabels(("forward pass", "backward pass and update"))
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
