"""Plain, compressed, recomputed and offloaded training in pairs of the same seeds: what the applications share."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import statistics
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
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
      evaluate: Of the network: its scores by name, the first of which is that of the target; see `on_predictions`.
      is_higher_better: Of that one.
      epochs: Passes over the data.
      batch: Samples a step.
      part: Samples of an epoch, the next ones in each; None: all of them in each.
    """

    build: Callable[[bool], keras.Model]
    data: tuple
    evaluate: Callable[[keras.Model], dict[str, float]]
    is_higher_better: bool
    epochs: int
    batch: int
    part: int | None = None

    def epoch(self, number: int, seed: int) -> tf.data.Dataset:
        """The samples of an epoch, counted from 0, in an order of the seed."""
        x, y = self.data[0]
        part = (self.part or len(x)) // self.batch * self.batch
        turn, start = divmod(number * part, len(x) // part * part)
        order = np.random.default_rng((seed, turn)).permutation(len(x))[start : start + part]
        return tf.data.Dataset.from_tensor_slices((x[order], y[order]))


def on_predictions(
    scores: Callable[[np.ndarray, np.ndarray], dict[str, float]], data: tuple, batch: int
) -> Callable[[keras.Model], dict[str, float]]:
    """`evaluate` by a function of (what the network makes of x, y)."""
    x, y = data
    return lambda model: scores(model.predict(x, batch_size=batch, verbose=0), y)


class Run(NamedTuple):
    """One training: scores after each epoch, seconds of each, and of a step what `ct.memory.measure_step` says."""

    scores: list[dict[str, float]]
    epoch_s: list[float]
    memory: ct.memory.StepMemory | None


def arguments(
    parser: argparse.ArgumentParser, out: str, arms: Sequence[str] = tuple(ARMS)
) -> argparse.Namespace:
    """Of the command line, with what all applications are asked; `arms` are those that this one has."""
    parser.add_argument("--seeds", type=int, default=5, help="pairs (%(default)s)")
    parser.add_argument("--arms", nargs="+", choices=arms, default=list(arms), help="(%(default)s)")
    parser.add_argument("--policy", type=Path, help="policy.json of a study: one more arm")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder; what is in it is not run again")
    args = parser.parse_args()
    if PLAIN not in args.arms:
        parser.error(f"--arms must have {PLAIN}, which the others are compared with. Received: {args.arms}.")
    if args.policy:
        args.arms.append(POLICY)
    return args


class _Evaluated(keras.callbacks.Callback):
    """Scores after each epoch, and the seconds of each without them; both are in a checkpoint."""

    def __init__(self, evaluate: Callable[[keras.Model], dict[str, float]]):
        super().__init__()
        self._evaluate = evaluate
        self.scores: list[dict[str, float]] = []
        self.epoch_s: list[float] = []
        self._spent_s = 0.0
        self._since = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._since = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._spent_s += time.perf_counter() - self._since

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epoch_s.append(self._spent_s)
        self._spent_s = 0.0
        self.scores.append(self._evaluate(self.model))


def train(
    app: Application, arm: str, seed: int, measured: bool, policy: Path | None, folder: Path
) -> tuple[Run, keras.Model]:
    """Trains once: seeds say weights and the order of the data, whatever the arm.

    Args:
      app: What.
      arm: A key of `ARMS`, or POLICY.
      seed: Of the training.
      measured: Also measure a step.
      policy: Of the arm POLICY.
      folder: Of its checkpoint: one that was killed goes on from there.
    """
    keras.utils.set_random_seed(seed)
    model = app.build(arm == "recompute")
    how = {"policy": policy} if arm == POLICY else ARMS[arm]
    if how is not None:
        ct.compress_model(model, **how)
    ends = _Evaluated(app.evaluate)
    ct.fit(
        model,
        lambda epoch: app.epoch(epoch, seed),
        batch_size=app.batch,
        epochs=app.epochs,
        callbacks=[ends],
        checkpoint_dir=folder,
        verbose=0,
    )
    x, y = app.data[0]
    memory = ct.memory.measure_step(model, x[: app.batch], y[: app.batch]) if measured else None
    return Run(ends.scores, ends.epoch_s, memory), model


def compare(app: Application, args: argparse.Namespace, console: Console) -> dict[str, list[Run]]:
    """The arms with all seeds; a step is measured, and the weights kept, with the first.

    Each run is a line of args.out/runs.jsonl, with the arguments it had, and one that runs has a checkpoint: a killed
    comparison goes on where it was.

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
            checkpoint = args.out / f"{_stem(args, arm)}-{seed}"
            run, model = train(app, arm, seed, seed == seeds[0], args.policy, checkpoint)
            if seed == seeds[0]:
                np.savez(_weights(args, arm), *model.get_weights())
            runs[arm, seed] = run
            memory = run.memory and run.memory._asdict()
            line = {"arm": arm, "seed": seed, "setting": _setting(args, arm), **run._asdict()}
            print(json.dumps({**line, "memory": memory}), file=log, flush=True)
            shutil.rmtree(checkpoint)
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


def _stem(args: argparse.Namespace, arm: str) -> str:
    return f"{arm}-{zlib.crc32(json.dumps(_setting(args, arm)).encode()):08x}"


def _weights(args: argparse.Namespace, arm: str) -> Path:
    return args.out / f"{_stem(args, arm)}.npz"


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


def curves(app: Application, runs: Mapping[str, list[Run]], file: Path) -> Path | str:
    """Writes a plot of the target's score after each epoch, a line for each seed, and of each arm's peak."""
    try:
        from matplotlib import pyplot
    except ImportError:
        return "No picture: pip install tf_comptrain[plots]."
    name = next(iter(runs[PLAIN][0].scores[-1]))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained", width_ratios=(3, 1))
    for number, (arm, of_arm) in enumerate(runs.items()):
        for run in of_arm:
            values = [scores[name] for scores in run.scores]
            left.plot(range(1, len(values) + 1), values, f"C{number}", alpha=0.5, label=arm)
        memory: Any = of_arm[0].memory
        right.bar(arm, memory.peak_bytes / 1e6, color=f"C{number}")
    labels = dict(zip(*reversed(left.get_legend_handles_labels())))
    left.legend(labels.values(), labels.keys())
    left.set(xlabel="epoch", ylabel=name)
    right.set(ylabel=f"peak at batch {app.batch}, MB")
    right.tick_params(axis="x", rotation=30)
    figure.savefig(file, dpi=130)
    pyplot.close(figure)
    return file


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
