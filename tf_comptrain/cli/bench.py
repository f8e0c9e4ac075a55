"""`tf-comptrain bench step`: peak memory, time and saved bytes of a training step in three variants.

Each variant lives in a child process, with an allocator of its own, and waits there to be asked for
a step. The steps are asked for in turn, so that a ratio compares neighbouring moments of a machine
whose speed drifts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from tf_comptrain.cli import options
from tf_comptrain.processes import name_of_signal
from tf_comptrain.render import text
from tf_comptrain.render.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table

LABELS = {"plain": "plain Keras", "fused_bn": "plain + fused BN", "compressed": "compressed"}


class MeasuredVariant(NamedTuple):
    """What one variant took.

    Attributes:
      peak_bytes: Allocator peak over the resting level, the largest of the steps.
      steps_s: Seconds of each step, in the order of the rounds.
      saved_bytes: Held between forward and backward pass.
      predicted_bytes: The peak as memory.predict_peak predicts it from smaller batches; None where
        that was not asked for.
      planned_bytes: The step's temporary memory as XLA's compiler plans it; None on TensorFlow's executor.
    """

    peak_bytes: int
    steps_s: list[float]
    saved_bytes: int
    predicted_bytes: int | None = None
    planned_bytes: int | None = None

    def summary(self) -> dict:
        return {
            "peak_bytes": self.peak_bytes,
            "planned_bytes": self.planned_bytes,
            "step_s": statistics.median(self.steps_s),
            "saved_bytes": self.saved_bytes,
        }


class WorkerError(RuntimeError):
    """A child process ended before it answered."""


class BenchWorker:
    """A child process that holds one variant and measures a step when asked.

    Args:
      variant: One of `bench_worker.VARIANTS`.
      command: The child's command line without `--variant`; it ends up in `bench_worker.serve`.
    """

    def __init__(self, variant: str, command: Sequence[str]):
        environment = dict(os.environ)
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        package_parent = str(Path(__file__).resolve().parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [package_parent, environment.get("PYTHONPATH")])
        )
        self.variant = variant
        self._messages = tempfile.TemporaryFile("w+")  # noqa: SIM115  # shown only on failure
        self._process = subprocess.Popen(
            [*command, "--variant", variant],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
            env=environment,
        )
        self._saved_bytes = 0
        self._predicted_bytes: int | None = None
        self._planned_bytes: int | None = None
        self._peaks: list[int] = []
        self._steps_s: list[float] = []

    def wait_until_ready(self) -> None:
        ready = self._reply()
        self._saved_bytes = ready["saved_bytes"]
        self._planned_bytes = ready["planned_bytes"]
        self._peaks.append(ready["peak_bytes"])

    def step(self) -> None:
        reply = self._ask("step")
        self._peaks.append(reply["peak_bytes"])
        self._steps_s.append(reply["step_s"])

    def measured(self) -> MeasuredVariant:
        return MeasuredVariant(
            max(self._peaks), self._steps_s, self._saved_bytes, self._predicted_bytes, self._planned_bytes
        )

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._messages.close()

    def predict(self) -> None:
        self._predicted_bytes = self._ask("predict")["predicted_bytes"]

    def _ask(self, question: str) -> dict:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{question}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the reply, which will not come, says why
        return self._reply()

    def _reply(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            self._messages.seek(0)
            raise WorkerError(f"{self._messages.read()}{LABELS[self.variant]}: {ending(status)}")
        return json.loads(line)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `main`."""
    options.add_model(parser, batch="images a batch")
    parser.add_argument(
        "--steps", type=options.positive, default=5, help="measured steps of each variant (%(default)s)"
    )
    options.add_compression(parser)
    options.add_jit_compile(parser)
    options.add_json(parser)
    parser.set_defaults(function=main)


def main(args: argparse.Namespace) -> int:
    """Measures and prints; returns 1 when a variant failed."""
    from tf_comptrain.cli import model_source  # imports TensorFlow

    model_source.check(args.model)
    start = "from tf_comptrain.cli.bench_worker import main; main()"
    command = [sys.executable, "-c", start, *options.for_worker(args), "--codec", args.codec]
    command += ["--storage", args.storage] if args.storage else []
    command += ["--jit-compile"] if args.jit_compile else []
    results = measure(command, args.steps, Console(stderr=True))
    if args.json:
        print(json.dumps({name: found and found.summary() for name, found in results.items()}, indent=1))
    else:
        title = f"{model_source.title(args.model, args.image)}, batch {args.batch}: one training step"
        text.show(_table(title, results), *_ratios(results))
    return 1 if None in results.values() else 0


def measure(
    command: Sequence[str], steps: int, console: Console, predict: bool = False
) -> dict[str, MeasuredVariant | None]:
    """Runs all variants, round by round; None for one that failed, whose reason goes to the console.

    Args:
      command: See `BenchWorker`.
      steps: Measured steps of each variant.
      console: For progress and reasons.
      predict: Also predict each peak from smaller batches, after the steps.
    """
    from rich.progress import Progress

    alive: dict[str, BenchWorker] = {}
    try:
        with Progress(console=console) as progress:
            rounds = ["preparing", *(f"step {k + 1}" for k in range(steps)), *["predicting"] * predict]
            task = progress.add_task("", total=len(rounds) * len(LABELS))
            for label in rounds:
                for variant in LABELS:
                    progress.update(task, description=f"{LABELS[variant]}, {label}")
                    try:
                        if label == "preparing":
                            alive[variant] = BenchWorker(variant, command)
                            alive[variant].wait_until_ready()
                        elif variant in alive:
                            worker = alive[variant]
                            worker.predict() if label == "predicting" else worker.step()
                    except WorkerError as error:
                        alive.pop(variant).close()
                        progress.console.print(str(error), style="red", markup=False)
                    progress.advance(task)
        return {name: alive[name].measured() if name in alive else None for name in LABELS}
    finally:
        for worker in alive.values():
            worker.close()


def paired_ratio(over: MeasuredVariant, under: MeasuredVariant) -> float:
    """Median over rounds of one variant's step time by the other's of the same round."""
    return statistics.median(a / b for a, b in zip(over.steps_s, under.steps_s))


def ending(status: int) -> str:
    """How a process with this exit status ended, in words."""
    if status >= 0:
        return f"the process ended with status {status} (its messages are above)"
    name = name_of_signal(-status)
    hint = ", which may mean out of memory" if name in ("SIGKILL", "SIGSEGV", "SIGABRT") else ""
    return f"the process was ended by {name}{hint}"


def _table(title: str, results: dict[str, MeasuredVariant | None]) -> Table:
    planned = any(found and found.planned_bytes for found in results.values())  # XLA, asked for or by Keras
    numbers = ("peak memory", *["planned by XLA"] * planned, "s/step", "saved activations")
    table = text.table_of(title, ("", *numbers), numbers)
    for name, found in results.items():
        if found is None:
            table.add_row(LABELS[name], "failed", *[""] * (len(numbers) - 1))
        else:
            row = found.summary()
            table.add_row(
                LABELS[name],
                format_bytes(row["peak_bytes"]) if row["peak_bytes"] else "not counted",
                *[format_bytes(row["planned_bytes"] or 0)] * planned,
                f"{row['step_s']:.3f}",
                format_bytes(row["saved_bytes"]),
            )
    return table


def _ratios(results: dict[str, MeasuredVariant | None]) -> list[str]:
    plain, fused, compressed = (results[name] for name in LABELS)
    lines = []
    if plain and compressed:
        if compressed.peak_bytes:
            lines.append(f"peak plain / compressed: {plain.peak_bytes / compressed.peak_bytes:.2f}")
        if plain.planned_bytes and compressed.planned_bytes:
            lines.append(f"planned plain / compressed: {plain.planned_bytes / compressed.planned_bytes:.2f}")
        lines.append(f"saved plain / compressed: {plain.saved_bytes / compressed.saved_bytes:.2f}")
        lines.append(f"step time compressed / plain: {paired_ratio(compressed, plain):.2f}")
    if fused and compressed:
        lines.append(f"step time compressed / plain + fused BN: {paired_ratio(compressed, fused):.2f}")
    return lines
