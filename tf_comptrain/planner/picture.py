"""The picture of a plan: what each queue does, and the memory below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tf_comptrain.planner.simulator import QueueEvent
from tf_comptrain.render import plots
from tf_comptrain.render.units import axis_of_bytes, axis_of_seconds, format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Words = Mapping[str, tuple[str, str]]  # kind of event -> (what it is called, its colour)

_KINDS: Words = {
    "task": ("layers", plots.GREY),
    "encode": ("encode", plots.BLUE),
    "decode": ("decode", plots.LIGHT_BLUE),
    "rebuild": ("rebuild", plots.ORANGE),
    "segment": ("block run again", plots.BROWN),
    "copy": ("copy to or from the host", plots.GREEN),
}
_DEVICE_KINDS: Words = {
    "forward": ("forward", plots.BLUE),
    "backward": ("backward", plots.ORANGE),
    "copy": ("between stages", plots.GREEN),
    "sync": ("sums of gradients", plots.PURPLE),
}
_QUEUES = ("compute", "copy out", "copy in")

Curve = Sequence[tuple[float, float]]


def draw_step(
    title: str,
    events: Sequence[QueueEvent],
    step_s: float,
    curve: Curve,
    limit_bytes: int,
    turn_s: float | None,
    path: str | Path,
) -> None:
    """Draws a step of one device into an image file: its queues, and the memory below them.

    Args:
      title: Above it.
      events: What each queue does.
      step_s: How long the step takes.
      curve: (seconds, bytes) at each change of the memory in use.
      limit_bytes: Of the memory.
      turn_s: When the backward pass begins.
      path: Its suffix says which kind of image.
    """
    queues = [queue for queue in _QUEUES if any(event.queue == queue for event in events)]
    heights = (0.45 + 0.42 * len(queues), 3.2)
    figure = plots.figure(10, sum(heights) + 1.2)
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": heights})
    unit, divisor = axis_of_seconds(step_s)
    _draw_queues(above, events, queues, _KINDS, divisor)
    plots.title(above, title)
    _draw_memory(below, [(time / divisor, size) for time, size in curve], limit_bytes)
    if turn_s is not None:
        below.axvline(turn_s / divisor, color=plots.DARK_GREY, linestyle=":", linewidth=1)
        place = {"xycoords": ("data", "axes fraction"), "fontsize": "small", "color": plots.DARK_GREY}
        plots.note(below, "backward pass", (turn_s / divisor, 0.02), (5, 0), **place)
    below.set(xlabel=f"time since the step began, {unit}", xlim=(0, step_s / divisor))
    plots.save(figure, path)


def draw_stages(title: str, events: Sequence[QueueEvent], step_s: float, path: str | Path) -> None:
    """Draws what each stage and link of several devices does in a step into an image file; see `draw_step`."""
    queues = sorted({event.queue for event in events}, key=_queue_order)
    figure = plots.figure(10, 1.4 + 0.34 * len(queues))
    axes = figure.subplots()
    unit, divisor = axis_of_seconds(step_s)
    _draw_queues(axes, events, queues, _DEVICE_KINDS, divisor)
    plots.title(axes, title)
    axes.set(xlim=(0, step_s / divisor), xlabel=f"time, {unit}")
    plots.save(figure, path)


def _queue_order(queue: str) -> tuple[int, int]:
    """Stages with their sums and the link behind them, from the first on."""
    kind, _, number = queue.partition(" ")
    return int(number.partition("-")[0]), ("stage", "sync", "link").index(kind)


def _draw_queues(
    axes: Axes, events: Sequence[QueueEvent], queues: Sequence[str], kinds: Words, divisor: float
) -> None:
    """What each queue does, with the kinds of events that there are."""
    bars = [
        (lane, colour, spans)
        for lane, queue in enumerate(queues)
        for kind, (_, colour) in kinds.items()
        if (
            spans := [
                (event.start_s / divisor, event.end_s / divisor)
                for event in events
                if (event.queue, event.kind) == (queue, kind)
            ]
        )
    ]
    plots.lanes(axes, queues, bars)
    there = {event.kind for event in events}
    plots.legend(axes, {words: colour for kind, (words, colour) in kinds.items() if kind in there})


def _draw_memory(axes: Axes, curve: Curve, limit_bytes: int) -> None:
    highest = max(limit_bytes, *(size for _, size in curve))
    unit, scale = axis_of_bytes(highest)
    plots.levels(axes, [time for time, _ in curve], [size / scale for _, size in curve], plots.BLUE)
    axes.axhline(limit_bytes / scale, color=plots.RED, linewidth=1.2, linestyle="--")
    place = {"xycoords": ("axes fraction", "data"), "va": "center", "color": plots.RED}
    plots.note(axes, f"limit {format_bytes(limit_bytes)}", (1, limit_bytes / scale), (6, 0), **place)
    axes.set(ylim=(0, 1.12 * highest / scale), ylabel=f"memory in use, {unit}")
