"""Plain, compressed, recomputed and offloaded training in pairs of the same seeds: what the applications share."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats
from tensorflow import keras

import tf_comptrain as ct

PLAIN = "plain"
ARMS: dict[str, dict[str, Any] | None] = {  # arguments of compress_model; None: not called
    PLAIN: None,
    "compressed": {},
    "recompute": None,  # the network is built with ct.Recompute around its blocks
    "offload": {"storage": "offload"},
}


class Application(NamedTuple):
    """What is trained.

    Attributes:
      build: Of whether blocks are to be recomputed: the network, compiled.
      data: ((x, y), (x_test, y_test)).
      scores: Of (what the network makes of x_test, y_test): numbers by name, the first of which is that of the target.
      is_higher_better: Of that one.
      epochs: Passes over the data.
      batch: Samples a step.
    """

    build: Callable[[bool], keras.Model]
    data: tuple
    scores: Callable[[np.ndarray, np.ndarray], dict[str, float]]
    is_higher_better: bool
    epochs: int
    batch: int


class Run(NamedTuple):
    """One training: scores after each epoch, seconds of each, and of a step what `ct.memory.measure_step` says."""

    scores: list[dict[str, float]]
    epoch_s: list[float]
    memory: ct.memory.StepMemory | None
    model: keras.Model


def train(app: Application, arm: str, seed: int, measured: bool, policy: str | Path | None = None) -> Run:
    """Trains once: seeds say weights and the order of the data, whatever the arm.

    Args:
      app: What.
      arm: A key of `ARMS`.
      seed: Of the training.
      measured: Also measure a step.
      policy: Of `compress_model`, in place of the arm's arguments.
    """
    keras.utils.set_random_seed(seed)
    model = app.build(arm == "recompute")
    how = {"policy": policy} if policy is not None else ARMS[arm]
    if how is not None:
        ct.compress_model(model, **how)
    (x, y), (x_test, y_test) = app.data
    scores, seconds = [], []
    whole = len(x) // app.batch * app.batch
    for epoch in range(app.epochs):
        order = np.random.default_rng((seed, epoch)).permutation(len(x))[:whole]
        began = time.perf_counter()
        model.fit(x[order], y[order], batch_size=app.batch, shuffle=False, verbose=0)
        seconds.append(time.perf_counter() - began)
        scores.append(app.scores(model.predict(x_test, batch_size=app.batch, verbose=0), y_test))
    memory = ct.memory.measure_step(model, x[: app.batch], y[: app.batch]) if measured else None
    return Run(scores, seconds, memory, model)


def compare(app: Application, seeds: Sequence[int], console: Console) -> dict[str, list[Run]]:
    """All arms with all seeds; a step is measured with the first."""
    runs: dict[str, list[Run]] = {arm: [] for arm in ARMS}
    with console.status("") as status:
        for number, seed in enumerate(seeds):
            for arm in ARMS:
                status.update(f"{arm}, seed {seed}")
                run = train(app, arm, seed, measured=number == 0)
                runs[arm].append(run if number == 0 else run._replace(model=None))
    return runs


def table(app: Application, runs: Mapping[str, list[Run]], title: str) -> Table:
    """A row for each arm: scores with their changes from plain training, and the 95% interval; what a step takes."""
    shown = Table(title=title, caption="change from plain training of the same seed [95% interval]")
    shown.add_column("")
    names = list(runs[PLAIN][0].scores[-1])
    for heading in (*names, "saved", "peak", "samples/s", "s to target", "epochs to target"):
        shown.add_column(heading, justify="right")
    for arm, of_arm in runs.items():
        cells = [_score(name, of_arm, runs[PLAIN], arm == PLAIN) for name in names]
        memory: Any = of_arm[0].memory
        reached = [_reached(app, names[0], ours, plain) for ours, plain in zip(of_arm, runs[PLAIN])]
        seconds = [sum(run.epoch_s[:epoch]) for run, epoch in zip(of_arm, reached) if epoch]
        epochs = [epoch for epoch in reached if epoch]
        cells += [
            f"{memory.saved_bytes / 1e6:.1f} MB",
            f"{memory.peak_bytes / 1e6:.1f} MB",
            f"{app.batch / memory.step_s:.0f}",
            f"{statistics.fmean(seconds):.1f} ({len(epochs)}/{len(reached)})" if epochs else "none",
            f"{statistics.fmean(epochs):.1f}" if epochs else "none",
        ]
        shown.add_row(arm, *cells)
    return shown


def changes(name: str, ours: Sequence[Run], plain: Sequence[Run]) -> tuple[float, float, float]:
    """(mean, low, high) of a score's change over the seeds: Student's t; no interval of one seed."""
    found = [run.scores[-1][name] - base.scores[-1][name] for run, base in zip(ours, plain)]
    mean = statistics.fmean(found)
    if len(found) < 2:
        return mean, math.nan, math.nan
    half = stats.t.ppf(0.975, len(found) - 1) * statistics.stdev(found) / math.sqrt(len(found))
    return mean, mean - half, mean + half


def write(file: Path, runs: Mapping[str, list[Run]]) -> None:
    """The numbers of all runs as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    found = {
        arm: [
            {"scores": run.scores, "epoch_s": run.epoch_s, "memory": run.memory and run.memory._asdict()}
            for run in of_arm
        ]
        for arm, of_arm in runs.items()
    }
    file.write_text(json.dumps(found, indent=1))


def _score(name: str, ours: Sequence[Run], plain: Sequence[Run], is_plain: bool) -> str:
    mean = statistics.fmean(run.scores[-1][name] for run in ours)
    if is_plain:
        return f"{mean:.4f}"
    change, low, high = changes(name, ours, plain)
    interval = "" if math.isnan(low) else f"\n[{low:+.4f}, {high:+.4f}]"
    return f"{mean:.4f}\n{change:+.4f}{interval}"


def _reached(app: Application, name: str, ours: Run, plain: Run) -> int | None:
    """After how many epochs a run is where plain training of the seed ended."""
    target, sign = plain.scores[-1][name], 1 if app.is_higher_better else -1
    there = (sign * scores[name] >= sign * target for scores in ours.scores)
    return next((epoch for epoch, is_there in enumerate(there, 1) if is_there), None)
