"""Plain, compressed, recomputed and offloaded training in pairs of the same seeds: what the applications share."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats
from tensorflow import keras

import tf_comptrain as ct

PLAIN, POLICY = "plain", "policy"
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


def arguments(parser: argparse.ArgumentParser, out: str) -> argparse.Namespace:
    """Of the command line, with what all applications are asked."""
    parser.add_argument("--seeds", type=int, default=5, help="pairs (%(default)s)")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="(all)")
    parser.add_argument("--policy", type=Path, help="policy.json of a study: one more arm")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder; what is in it is not run again")
    args = parser.parse_args()
    if PLAIN not in args.arms:
        parser.error(f"--arms must have {PLAIN}, which the others are compared with. Received: {args.arms}.")
    if args.policy:
        args.arms.append(POLICY)
    return args


def train(
    app: Application, arm: str, seed: int, measured: bool, policy: Path | None
) -> tuple[Run, keras.Model]:
    """Trains once: seeds say weights and the order of the data, whatever the arm.

    Args:
      app: What.
      arm: A key of `ARMS`, or POLICY.
      seed: Of the training.
      measured: Also measure a step.
      policy: Of the arm POLICY.
    """
    keras.utils.set_random_seed(seed)
    model = app.build(arm == "recompute")
    how = {"policy": policy} if arm == POLICY else ARMS[arm]
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
    return Run(scores, seconds, memory), model


def compare(app: Application, args: argparse.Namespace, console: Console) -> dict[str, list[Run]]:
    """The arms with all seeds; a step is measured, and the weights kept, with the first.

    Each run is a line of args.out/runs.jsonl, with the arguments it had: a killed comparison goes on where it was.

    Args:
      app: What is trained.
      args: Of the application's command line, with those of `arguments`.
      console: Shows what is running.
    """
    file = args.out / "runs.jsonl"
    args.out.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = [line for line in lines if line["setting"] == _setting(args, line["arm"])]
    runs = {(line["arm"], line["seed"]): _read(line) for line in done}
    seeds = range(1, args.seeds + 1)
    with console.status("") as status, file.open("a") as log:
        for number, (seed, arm) in enumerate(itertools.product(seeds, args.arms)):
            if (arm, seed) in runs:
                continue
            status.update(f"{arm}, seed {seed}: {number} of {len(seeds) * len(args.arms)} runs are done")
            run, model = train(app, arm, seed, seed == seeds[0], args.policy)
            if seed == seeds[0]:
                np.savez(_weights(args, arm), *model.get_weights())
            runs[arm, seed] = run
            memory = run.memory and run.memory._asdict()
            line = {"arm": arm, "seed": seed, "setting": _setting(args, arm), **run._asdict()}
            print(json.dumps({**line, "memory": memory}), file=log, flush=True)
    return {arm: [runs[arm, seed] for seed in seeds] for arm in args.arms}


def model_of(app: Application, arm: str, args: argparse.Namespace) -> keras.Model:
    """What `compare` has trained with the first seed."""
    model = app.build(arm == "recompute")
    with np.load(_weights(args, arm)) as weights:
        model.set_weights(list(weights.values()))
    return model


def _setting(args: argparse.Namespace, arm: str) -> dict[str, Any]:
    """What tells runs apart that are in one folder, beside arm and seed."""
    others = ("seeds", "arms", "out") if arm == POLICY else ("seeds", "arms", "out", "policy")
    given = {name: value for name, value in vars(args).items() if name not in others}
    return json.loads(json.dumps(given, default=str))


def _weights(args: argparse.Namespace, arm: str) -> Path:
    setting = zlib.crc32(json.dumps(_setting(args, arm)).encode())
    return args.out / f"{arm}-{setting:08x}.npz"


def _read(line: Mapping[str, Any]) -> Run:
    memory = line["memory"] and ct.memory.StepMemory(**line["memory"])
    return Run(line["scores"], line["epoch_s"], memory)


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
