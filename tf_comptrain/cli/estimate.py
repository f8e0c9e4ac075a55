"""`tf-comptrain estimate`: how much memory a model's training takes, plain, compressed and by other ways.

Each way trains a few steps on one batch, in a process of its own. Its memory is the highest of the
allocator, weights and optimizer included, from the first step on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from tf_comptrain.cli import options
from tf_comptrain.processes import name_of_signal
from tf_comptrain.render import text
from tf_comptrain.render.units import axis_of_bytes, format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table

EXECUTOR, XLA = "executor", "XLA"
PLAIN, COMPRESSED, PLANNED = "plain", "compressed", "planned"
MIXED, REMAT, ACCUMULATED = "mixed precision", "keras.RematScope", "gradient accumulation"
WAYS = (PLAIN, COMPRESSED, PLANNED, MIXED, REMAT, ACCUMULATED)
# What a user asks first comes first: --seconds may end the rest.
_ORDER = (
    (PLAIN, EXECUTOR),
    (COMPRESSED, EXECUTOR),
    (PLAIN, XLA),
    (COMPRESSED, XLA),
    *((way, EXECUTOR) for way in (REMAT, ACCUMULATED, PLANNED)),
    *((way, XLA) for way in (REMAT, ACCUMULATED, PLANNED)),
    (MIXED, EXECUTOR),  # slow on most CPUs
    (MIXED, XLA),
)
_MB = 1_000_000
_MUCH = 1.2  # times as much, from which on engines are compared
_NOT_COUNTED = "TensorFlow counts no memory here; set TF_ENABLE_ONEDNN_OPTS=1"


class Estimate(NamedTuple):
    """What one way to train takes.

    Attributes:
      way: One of `WAYS`; "planned" is for half of plain's memory, "gradient accumulation" over four parts
        of the batch.
      engine: "executor" or "XLA".
      total_bytes: Highest of the allocator in the first steps, weights and optimizer included; None where the
        way failed.
      resting_bytes: Of these the ones between steps; None where the batch did not run.
      measured: Whether the batch ran. False: XLA's plan of it, or the straight line through two smaller ones.
      step_s: Median seconds a step of the whole batch; None where it did not run.
      largest_batch: That fits into the memory, by the straight line through two batches; None: not known.
      note: Why there is no figure; "" where there is one.
    """

    way: str
    engine: str
    total_bytes: int | None = None
    resting_bytes: int | None = None
    measured: bool = False
    step_s: float | None = None
    largest_batch: int | None = None
    note: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `main`."""
    parser.add_argument(
        "model",
        help="FILE.py:FUNCTION, which returns a compiled model, or (model, x, y) with samples to measure by; "
        "a .keras file; or a model of keras.applications",
    )
    options.add_of_source(parser)
    parser.add_argument("--batch", type=options.positive, required=True, help="samples a step")
    parser.add_argument(
        "--memory",
        type=options.size_in_bytes,
        help="of the machine that the largest batch is for, such as 8GiB (what is free on this one)",
    )
    parser.add_argument("--engine", choices=(EXECUTOR, XLA, "both"), default="both", help="(%(default)s)")
    parser.add_argument(
        "--seconds",
        type=options.positive,
        default=120,
        help="begin no further measurement after so many (%(default)s)",
    )
    options.add_json(parser)
    parser.add_argument(
        "--picture", type=options.file_to_write, help="file for a chart, .png or .svg; needs matplotlib"
    )
    parser.set_defaults(function=main)


def main(args: argparse.Namespace) -> int:
    """Measures and prints; returns 1 where plain training gave no figure."""
    from tf_comptrain.cli import model_source  # imports TensorFlow

    model_source.check(args.model)
    found, room_bytes = _measure(args, Console(stderr=True))
    name = model_source.title(args.model, args.image)
    memory_bytes = args.memory or room_bytes
    if args.json:
        about = {"model": name, "batch": args.batch, "memory_bytes": memory_bytes}
        print(json.dumps({**about, "ways": [row._asdict() for row in found]}, indent=1))
    else:
        text.show(*_summary(found, name, args.batch, memory_bytes), "", _table(found, memory_bytes))
        text.show(
            "Memory: the allocator's highest in the first steps, weights and optimizer included; ~ where the "
            "batch did not run. Largest batch: by the straight line through two batches. Ratios are to plain, on "
            "the same engine."
        )
    if args.picture is not None:
        draw(found, f"{name}, batch {args.batch}", args.picture)
    return 0 if any(row.way == PLAIN and row.total_bytes for row in found) else 1


def _measure(args: argparse.Namespace, console: Console) -> tuple[list[Estimate], int | None]:
    """The ways in their order, and the bytes that a step can have on this machine."""
    found: list[Estimate] = []
    room_bytes = None
    ways = [(way, engine) for way, engine in _ORDER if args.engine in (engine, "both")]
    began = time.monotonic()
    with console.status("") as status:
        try:
            for way, engine in ways:
                spent = time.monotonic() - began
                if spent > args.seconds:
                    found.append(Estimate(way, engine, note=f"not measured within --seconds {args.seconds}"))
                    continue
                status.update(f"{way}, {engine} ({len(found) + 1} of {len(ways)}, {spent:.0f} s)")
                plain = next((row for row in found if (row.way, row.engine) == (PLAIN, engine)), None)
                answer = _answer(args, way, engine, plain)
                room_bytes = answer.get("room_bytes", room_bytes)
                found.append(_estimate(way, engine, answer, args.batch, args.memory or room_bytes))
        except KeyboardInterrupt:
            done = len(found)
            found += [Estimate(way, engine, note="interrupted") for way, engine in ways[done:]]
    return found, room_bytes


def _answer(args: argparse.Namespace, way: str, engine: str, plain: Estimate | None) -> dict:
    """What the process of a way says; {"failed": why} also where it ended without a word."""
    command = [
        sys.executable,
        "-m",
        "tf_comptrain.cli.estimate_worker",
        *options.for_worker(args),
        "--way",
        way,
    ]
    command += ["--xla"] if engine == XLA else []
    if way == PLANNED:
        if plain is None or plain.total_bytes is None:
            return {"failed": "needs plain's memory"}
        command += ["--limit", str(plain.total_bytes // 2)]
    with tempfile.TemporaryFile("w+") as messages:
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=messages, text=True, check=False)
        messages.seek(0)
        said = messages.read().strip().splitlines()
    if run.stdout.strip():
        answer = json.loads(run.stdout.splitlines()[-1])
        if answer.get("is_source_error"):  # of every way
            raise options.SourceError(answer["failed"])
        return answer
    if run.returncode < 0:
        return {"failed": f"out of memory, or ended by {name_of_signal(-run.returncode)}"}
    return {"failed": said[-1][:200] if said else f"ended with status {run.returncode}"}


def _estimate(way: str, engine: str, answer: dict, batch: int, memory_bytes: int | None) -> Estimate:
    if "failed" in answer:
        return Estimate(way, engine, note=answer["failed"])
    size, total = answer["line"][-1]
    if total == 0:
        return Estimate(way, engine, note=_NOT_COUNTED, step_s=answer["step_s"])
    largest = None
    if len(answer["line"]) > 1:
        smaller, less = answer["line"][-2]
        per_sample = (total - less) / (size - smaller)
        total += round(per_sample * (batch - size))
        if memory_bytes and per_sample > 0:
            largest = max(int(batch + (memory_bytes - total) // per_sample), 0)
    measured = answer["total_bytes"] is not None
    total = answer["total_bytes"] if measured else total
    return Estimate(way, engine, total, answer["resting_bytes"], measured, answer["step_s"], largest)


def _plain_of(found: Sequence[Estimate], row: Estimate) -> Estimate:
    return next(other for other in found if (other.way, other.engine) == (PLAIN, row.engine))


def _summary(found: Sequence[Estimate], name: str, batch: int, memory_bytes: int | None) -> list[str]:
    lines = [f"{name}, batch {batch}"]
    for engine in (EXECUTOR, XLA):
        rows = {row.way: row for row in found if row.engine == engine and row.total_bytes}
        if PLAIN not in rows or COMPRESSED not in rows:
            continue
        plain, compressed = rows[PLAIN], rows[COMPRESSED]
        assert plain.total_bytes and compressed.total_bytes
        line = f"{engine}: {format_bytes(plain.total_bytes)} plain, {format_bytes(compressed.total_bytes)} compressed"
        line += f" ({plain.total_bytes / compressed.total_bytes:.1f} x less)"
        if plain.step_s and compressed.step_s:
            line += f", step {compressed.step_s / plain.step_s:.2f} of plain's"
        if plain.largest_batch is not None and compressed.largest_batch is not None:
            line += f"; in {format_bytes(memory_bytes)} a batch of {plain.largest_batch:,} plain, "
            line += f"{compressed.largest_batch:,} compressed"
        lines.append(f"{line}.")
    return [*lines, *_other_engine(found)]


def _other_engine(found: Sequence[Estimate]) -> list[str]:
    """Which engine is better for compressed training, where that is much: `fit` takes XLA by itself on one GPU."""
    rows = [row for row in found if row.way == COMPRESSED and row.total_bytes]
    if len(rows) != 2:
        return []
    lines, names = [], {EXECUTOR: "the executor", XLA: "XLA"}
    memory = {row.engine: float(row.total_bytes or 0) for row in rows}
    seconds = {row.engine: row.step_s or 0.0 for row in rows}
    for figures, gain in ((memory, "takes %.1f x less memory than"), (seconds, "is %.1f x as fast as")):
        less, more = sorted(figures, key=figures.__getitem__)
        if figures[more] > _MUCH * figures[less] > 0:
            sentence = f"{names[less]} {gain % (figures[more] / figures[less])} {names[more]}"
            lines.append(f"Compressed, {sentence}: jit_compile={less == XLA}.")
    return lines


def _table(found: Sequence[Estimate], memory_bytes: int | None) -> Table:
    largest = f"largest batch in {format_bytes(memory_bytes)}" if memory_bytes else "largest batch"
    numbers = ("memory", "plain / it", "at rest", "step", "it / plain", largest)
    table = text.table_of("", ("engine", "way", *numbers), numbers)
    for engine in (EXECUTOR, XLA):
        for row in (row for row in found if row.engine == engine):
            name = "planned for half of plain's" if row.way == PLANNED else row.way
            if row.total_bytes is None:
                table.add_row(engine, f"{name}: {row.note}", *[""] * len(numbers))
                continue
            plain = _plain_of(found, row)
            less = f"{plain.total_bytes / row.total_bytes:.2f}" if plain.total_bytes else ""
            slower = f"{row.step_s / plain.step_s:.2f}" if row.step_s and plain.step_s else ""
            table.add_row(
                engine,
                name,
                f"{'' if row.measured else '~'}{format_bytes(row.total_bytes)}",
                less,
                format_bytes(row.resting_bytes),
                format_seconds(row.step_s),
                slower,
                "" if row.largest_batch is None else f"{row.largest_batch:,}",
            )
        if any(row.engine == engine for row in found):
            table.add_section()
    return table


def draw(found: Sequence[Estimate], of: str, path: Path) -> None:
    """A chart of the ways' memory, with their steps; needs matplotlib (the extra "plots")."""
    from tf_comptrain.render import plots

    rows = [row for engine in (EXECUTOR, XLA) for row in found if row.engine == engine and row.total_bytes]
    unit, divisor = axis_of_bytes(max((row.total_bytes or 0 for row in rows), default=_MB))
    figure = plots.figure(8, 1.2 + 0.34 * max(len(rows), 1))
    axes = figure.subplots()
    for at, row in enumerate(rows):
        assert row.total_bytes is not None
        rest = (row.resting_bytes or 0) / divisor
        step = row.total_bytes / divisor - rest
        ours = row.way in (COMPRESSED, PLANNED)
        axes.barh(at, rest, color=plots.GREY)
        axes.barh(at, step, left=rest, color=plots.BLUE if ours else plots.LIGHT_BLUE)
        words = f" {format_bytes(row.total_bytes)}"
        plain = _plain_of(found, row)
        if row.step_s and plain.step_s:
            words += f", step {row.step_s / plain.step_s:.2f}"
        axes.text(rest + step, at, words, va="center", fontsize="small")
    axes.set_yticks(range(len(rows)), [f"{row.way}, {row.engine}" for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.3)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{unit}: grey at rest (weights, optimizer, batch), blue what a step adds")
    plots.open_axes(axes, "top", "right")
    plots.title(axes, f"{of}: memory of training, step time beside plain's")
    plots.save(figure, path)
