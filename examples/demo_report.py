"""The demo's table, plot and HTML page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from tf_comptrain.compression.report import Report
from tf_comptrain.memory import StepMemory
from tf_comptrain.render import html, plots, text
from tf_comptrain.render.units import format_bytes

if TYPE_CHECKING:
    from demo_data import Images
    from matplotlib.axes import Axes

_NORMAL_95 = 1.96  # standard deviations
_ACCURACY = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
_COLOURS = {"plain": plots.GREY, "compressed": plots.BLUE}
_HEADINGS = ("", "plain Keras", "compressed", "plain / compressed")


class Run(NamedTuple):
    """One training: a value per epoch, the time of every step, and what a step takes."""

    losses: list
    accuracies: list
    steps_s: list
    step_s: float = 0.0
    memory: StepMemory = StepMemory(0, 0, 0.0, 0, 0)


def network(args: argparse.Namespace) -> str:
    """What He et al. call the network."""
    return f"ResNet-{6 * args.blocks + 2}"


def rows(runs: dict, batch: int, measure_batch: int) -> list[tuple[str, str, str, str]]:
    """(what, plain, compressed, plain / compressed) as text."""
    plain, compressed = runs["plain"], runs["compressed"]
    gap = 100 * (compressed.accuracies[-1] - plain.accuracies[-1])
    found = [
        (
            "test accuracy",
            f"{plain.accuracies[-1]:.2%}",
            f"{compressed.accuracies[-1]:.2%}",
            f"{gap:+.2f} points",
        )
    ]
    for label, values in (
        ("saved activations", (plain.memory.saved_bytes, compressed.memory.saved_bytes)),
        ("peak memory", (plain.memory.peak_bytes, compressed.memory.peak_bytes)),
    ):
        ratio = f"{values[0] / values[1]:.1f}x" if values[1] else ""
        found.append((f"{label}, batch {measure_batch}", *map(format_bytes, values), ratio))
    found.append(
        (
            f"time a step, batch {batch}",
            f"{plain.step_s:.3f} s",
            f"{compressed.step_s:.3f} s",
            f"{plain.step_s / compressed.step_s:.2f}x",
        )
    )
    return found


def certainty(run: Run, images: int) -> str:
    """What the difference of two trainings of one seed says."""
    accuracy = run.accuracies[-1]
    error = 100 * _NORMAL_95 * (accuracy * (1 - accuracy) / images) ** 0.5
    return (
        f"One seed, which shows no more than that both train: an accuracy on {images:,} images is known to within "
        f"{error:.1f} points (95%)."
    )


def table(runs: dict, batch: int, measure_batch: int) -> Table:
    made = text.table_of("", _HEADINGS, _HEADINGS[1:])
    for row in rows(runs, batch, measure_batch):
        made.add_row(*row)
    return made


def write(args: argparse.Namespace, runs: dict, limited, report: Report, images: Images) -> Path:
    """Writes demo.png and report.html; returns the page's path."""
    folder = args.out
    folder.mkdir(parents=True, exist_ok=True)
    plot(folder / "demo.png", runs, limited, args.measure_batch)
    page = folder / "report.html"
    page.write_text(_page(args, runs, limited, report, images))
    return page


def plot(path: Path, runs: dict, limited, measure_batch: int) -> None:
    """Writes the picture as an image file."""
    figure = plots.figure(13.5, 2.9)
    axes = figure.subplots(1, 5, gridspec_kw={"width_ratios": (1.5, 1.5, 1, 1, 1)})
    _learning(axes[:2], runs)
    _memory(axes[2:], runs, limited, measure_batch)
    plots.save(figure, path)


def _learning(axes: Sequence[Axes], runs: dict) -> None:
    for label, run in runs.items():
        epochs = range(1, len(run.losses) + 1)
        style = {"color": _COLOURS[label], "marker": "o", "markersize": 4, "label": label}
        style |= {"linestyle": "--", "zorder": 3} if label == "compressed" else {"linewidth": 3}
        axes[0].plot(epochs, run.losses, **style)
        axes[1].plot(epochs, [100 * a for a in run.accuracies], **style)
    for axis, title in ((axes[0], "training loss"), (axes[1], "test accuracy, %")):
        plots.title(axis, title)
        plots.open_axes(axis, "top", "right")
        axis.set_xlabel("epoch")
        axis.set_xticks(range(1, len(runs["plain"].losses) + 1))
        axis.legend(frameon=False)


def _memory(axes: Sequence[Axes], runs: dict, limited, measure_batch: int) -> None:
    megabytes = {
        f"saved activations, MB\n(batch {measure_batch})": [
            run.memory.saved_bytes / 1e6 for run in runs.values()
        ],
        f"peak memory, MB\n(batch {measure_batch})": [run.memory.peak_bytes / 1e6 for run in runs.values()],
    }
    for axis, (title, values) in zip(axes, megabytes.items()):
        _bars(axis, title, values, values[0] / values[1] if values[1] else None)
    batches = [limited.largest[label] for label in runs]
    limit = f"largest batch\nin {limited.limit_bytes / 1e6:.0f} MB"
    _bars(axes[2], limit, batches, batches[1] / batches[0])


def _bars(axis: Axes, title: str, values: list, ratio: float | None) -> None:
    bars = axis.bar(("plain", "compressed"), values, color=list(_COLOURS.values()), width=0.6)
    axis.bar_label(bars, [f"{value:.0f}" for value in values], padding=2)
    plots.title(axis, title + (f": {ratio:.1f}x" if ratio else ""))
    plots.open_axes(axis, "top", "right", "left")
    axis.set_yticks([])
    axis.margins(y=0.15)


def _drawn(columns: int, draw: Callable[[Sequence[Axes]], None]) -> str:
    figure = plots.figure(6.2, 2.9)
    draw(figure.subplots(1, columns))
    return plots.svg(figure)


def _page(args: argparse.Namespace, runs: dict, limited, report: Report, images: Images) -> str:
    bound = "" if args.error_bound is None else f", error_bound=ct.ErrorBound({args.error_bound:g})"
    compared = html.table(_HEADINGS, rows(runs, args.batch, args.measure_batch), _HEADINGS[1:])
    largest = limited.largest
    return html.page(
        f"{network(args)} on Fashion-MNIST, plain and with its activations held compressed",
        f"""<p>Both trainings start from the same weights and see the same batches ({escape(images.source)},
{len(runs["plain"].losses)} epochs, batch {args.batch}). The second one differs by one line:
<code>ct.compress_model(model, codec="{escape(args.codec)}"{bound})</code>.</p>
{compared}
<p>{certainty(runs["plain"], len(images.x_test))} Many seeds: <a href="{_ACCURACY.as_uri()}">{_ACCURACY.name}</a>.</p>
<div class="pictures">{_drawn(2, lambda axes: _learning(axes, runs))}
{_drawn(3, lambda axes: _memory(axes, runs, limited, args.measure_batch))}</div>
<h2>Under one memory limit</h2>
<p>With {limited.limit_bytes / 1e6:.0f} MB, plain training gets to a batch of {largest["plain"]}, compressed
training to {largest["compressed"]}: {largest["compressed"] / largest["plain"]:.1f} times as many images. A batch of
{limited.batch} ends plain training with</p>
<p><code>{escape(limited.plain_error)}</code></p>
<p>and trains compressed (loss {limited.compressed_loss:.3f}).</p>
<h2>How each tensor is held</h2>
<details><summary>{len(report.rows)} rows, bytes for one image, predicted</summary>
{report.to_html()}</details>
<p>Peaks are bytes of TensorFlow's allocator over the resting level; saved activations are what crosses from the
forward to the backward pass. Measured by <code>tf_comptrain.memory.measure_step</code> on this machine.</p>""",
    )
