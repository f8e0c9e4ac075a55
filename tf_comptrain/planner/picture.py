"""The picture of a plan: what each queue does, and the memory below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tf_comptrain.planner.device_plan import DevicePlan
from tf_comptrain.planner.plan import Plan, size_text, time_text
from tf_comptrain.planner.simulator import Event

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {
    "task": "#b8b8b8",
    "encode": "#2a6fbb",
    "decode": "#7fb2e5",
    "rebuild": "#d98324",
    "segment": "#a4521c",
    "copy": "#4a9a5b",
}
_NAMES = {"task": "layers", "segment": "block run again", "copy": "copy to or from the host"}
_DEVICE_COLOURS = {"forward": "#2a6fbb", "backward": "#d98324", "copy": "#4a9a5b", "sync": "#7a4fa3"}
_DEVICE_NAMES = {"copy": "between stages", "sync": "sums of gradients"}
_QUEUES = ("compute", "link", "copy out", "copy in")
_LIMIT, _MEMORY = "#b3261e", "#2a6fbb"


def draw_plan(plan: Plan, path: str | Path) -> None:
    """Draws a plan into an image file.

    Args:
      plan: With its events and curve.
      path: Its suffix says which kind of image.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    queues = [queue for queue in _QUEUES if any(event.queue == queue for event in plan.events)]
    heights = (0.45 + 0.42 * len(queues), 3.2)
    figure = Figure(figsize=(10, sum(heights) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": heights})
    unit, divisor = ("s", 1.0) if plan.step_s >= 1 else ("ms", 1e-3)
    _draw_queues(above, plan, queues, divisor)
    _draw_memory(below, plan, divisor)
    added = 100 * (plan.step_s / plan.plain_s - 1) if plan.plain_s else 0.0
    above.set_title(
        f"{plan.model}, batch {plan.batch}: {time_text(plan.step_s)} a step ({added:+.1f}%), "
        f"peak {size_text(plan.peak_bytes)}",
        loc="left",
        fontweight="bold",
    )
    below.set(xlabel=f"time since the step began, {unit}", xlim=(0, plan.step_s / divisor))
    figure.savefig(path, dpi=150)


def draw_device_plan(plan: DevicePlan, path: str | Path) -> None:
    """Draws what each stage and link of a plan over devices does into an image file.

    Args:
      plan: With its events.
      path: Its suffix says which kind of image.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    queues = sorted({event.queue for event in plan.events}, key=_queue_order)
    figure = Figure(figsize=(10, 1.4 + 0.34 * len(queues)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    unit, divisor = ("s", 1.0) if plan.step_s >= 1 else ("ms", 1e-3)
    for row, queue in enumerate(queues):
        for kind, colour in _DEVICE_COLOURS.items():
            bars = [
                (event.start_s / divisor, (event.end_s - event.start_s) / divisor)
                for event in plan.events
                if event.queue == queue and event.kind == kind
            ]
            edge = "white" if len(bars) <= 80 else "none"
            axes.broken_barh(bars, (row - 0.38, 0.76), facecolor=colour, edgecolor=edge, linewidth=0.4)
    axes.set_yticks(range(len(queues)), queues, fontsize="small")
    axes.set(ylim=(len(queues) - 0.5, -0.5), xlim=(0, plan.step_s / divisor), xlabel=f"time, {unit}")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(
        f"{plan.model}, batch {plan.batch} in {plan.microbatches} microbatches: {time_text(plan.step_s)} a step, "
        f"peak {size_text(plan.peak_bytes)}",
        loc="left",
        fontweight="bold",
        fontsize="medium",
    )
    _add_legend(axes, plan.events, _DEVICE_COLOURS, _DEVICE_NAMES, 1.0)
    figure.savefig(path, dpi=150)


def _queue_order(queue: str) -> tuple[int, int]:
    """Stages with their sums and the link behind them, from the first on."""
    kind, _, number = queue.partition(" ")
    return int(number.partition("-")[0]), ("stage", "sync", "link").index(kind)


def _draw_queues(axes: Axes, plan: Plan, queues: list[str], divisor: float) -> None:
    for row, queue in enumerate(queues):
        for kind, colour in _COLOURS.items():
            bars = [
                (event.start_s / divisor, (event.end_s - event.start_s) / divisor)
                for event in plan.events
                if event.queue == queue and event.kind == kind
            ]
            if bars:
                edge = "white" if len(bars) <= 80 and kind == "task" else "none"
                axes.broken_barh(bars, (row - 0.38, 0.76), facecolor=colour, edgecolor=edge, linewidth=0.4)
    axes.set_yticks(range(len(queues)), queues)
    axes.set_ylim(len(queues) - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _add_legend(axes, plan.events, _COLOURS, _NAMES, 1.05)


def _add_legend(
    axes: Axes, events: Sequence[Event], colours: Mapping[str, str], names: Mapping[str, str], top: float
) -> None:
    """Of the kinds of events that there are, right of the axes."""
    from matplotlib.patches import Patch

    kinds = [kind for kind in colours if any(event.kind == kind for event in events)]
    axes.legend(
        handles=[Patch(color=colours[kind], label=names.get(kind, kind)) for kind in kinds],
        loc="upper left",
        bbox_to_anchor=(1.005, top),
        frameon=False,
        fontsize="small",
    )


def _draw_memory(axes: Axes, plan: Plan, divisor: float) -> None:
    highest = max(plan.peak_bytes, plan.limit_bytes)
    unit, scale = ("GB", 1e9) if highest >= 1e9 else ("MB", 1e6)
    at = [time / divisor for time, _ in plan.curve]
    sizes = [size / scale for _, size in plan.curve]
    axes.fill_between(at, sizes, step="post", color=_MEMORY, alpha=0.35, linewidth=0)
    axes.step(at, sizes, where="post", color=_MEMORY, linewidth=1.2)
    axes.axhline(plan.limit_bytes / scale, color=_LIMIT, linewidth=1.2, linestyle="--")
    axes.annotate(
        f"limit {size_text(plan.limit_bytes)}",
        (1, plan.limit_bytes / scale),
        xycoords=("axes fraction", "data"),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=_LIMIT,
    )
    turn = next((event.start_s for event in plan.events if event.name == plan.first_backward), None)
    if turn is not None:
        axes.axvline(turn / divisor, color="#808080", linestyle=":", linewidth=1)
        axes.annotate(
            "backward pass",
            (turn / divisor, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(5, 0),
            textcoords="offset points",
            color="#505050",
            fontsize="small",
        )
    axes.set(ylim=(0, 1.12 * highest / scale), ylabel=f"memory in use, {unit}")
    axes.spines[["top", "right"]].set_visible(False)
