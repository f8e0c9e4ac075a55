"""`impact_study`: a grid of codecs, modes and bounds, measured on networks of the user's, cell by cell."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from absl import logging
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from tensorflow import keras

from tf_comptrain import _keras, arguments
from tf_comptrain.compression.layer_names import fingerprint
from tf_comptrain.study.folder import Folder
from tf_comptrain.study.grid import PLAIN_TRAINING, TENSORS, TRAINING, Bounds, Cell, Grid, grid_of
from tf_comptrain.study.probe import Probe
from tf_comptrain.study.results import Study
from tf_comptrain.study.tensor_cells import ProbedStage
from tf_comptrain.study.trainings import Data, TrainingTask, data_of, metric_of, train

Build = Callable[[], keras.Model]
_NETWORK = "network"  # the name of the only one


def impact_study(
    build: Build | Mapping[str, Build],
    data: Any,
    codecs: Sequence[str] | None = None,
    modes: Sequence[str] = ("sigma",),
    bounds: Bounds = None,
    stages: Sequence[str] = ("early", "mid", "late"),
    seeds: Sequence[int] = (0,),
    folder: str | os.PathLike = "study",
    *,
    epochs: int = 3,
    batch_size: int = 32,
    metric: str | None = None,
    trainings: bool = True,
    progress: bool = True,
) -> Study:
    """Measures what compression does to a network of one's own: for each codec, mode and bound.

    *Tensors*: at each stage of a plain training, one step: every tensor that it holds is taken through the codec and
    back (ratio, errors, speed), and the gradients of the weights are compared with those of the exact step, each tensor
    by itself and all at once. *Trainings*: one for each seed, of the same initial weights and order of the data as
    plain training with that seed. docs/study.md says what each column is.

    Each finished cell is a line in the folder: whatever stops a study, the same call goes on where it was. More codecs,
    modes, bounds, stages and seeds may be asked of a folder than it has.

    Args:
      build: Returns the network, compiled (jit_compile=False); or a mapping from names to such functions. Anew at each
        call.
      data: ((x, y), (x_validation, y_validation)), or a function that returns that; or, with several networks, a
        mapping from their names. Arrays, or structures of arrays.
      codecs: "plane", "rans", "zvc" and "fixed" (what XLA has) of this library; "zfp", "sz3", "zstd" (codes, then
        zstd), "blosc2" of the `[bench]` extra; "cosine" (as JPEG) and "group" (bits in groups of 256). None: all that
        are installed.
      modes: What bounds are: "abs", in units of the tensor; "sigma" or "range", relative to that of the tensor;
        "fixed_rate", bits of a value, for those codecs that have that. Lossless codecs have one cell in any case.
      bounds: For each mode, or a mapping from modes; None: four of each mode.
      stages: Of a training: "start", "early" (a tenth), "mid" (half), "late" (all). None of them: no tensor cells.
      seeds: Of the trainings. Tensors are looked at in that of the first, and steps are measured there.
      folder: For study.json and cells.jsonl; made where it is missing.
      epochs: Passes over the data of each training.
      batch_size: Samples a step.
      metric: A key of the logs of `fit`; None: the first metric on the validation data, or "val_loss".
      trainings: Train with each setting. False: one plain training, for its stages, and tensor cells: a policy needs no
        more, and minutes do.
      progress: Show what is being measured, and the time left.

    Returns:
      The `Study`, which has the table, the summary and the report.

    Raises:
      ValueError: An argument is out of range, `build` returns no compiled model or one for XLA, or the folder has
        another study. What goes wrong in a single cell is in its rows, as "problem".

    Examples:
      >>> study = ct.impact_study(build, data, codecs=["plane", "rans"], modes=["sigma"], seeds=range(3))
      >>> study.to_html("report.html")
    """
    _keras.require_keras_3("tf_comptrain.impact_study", "Use check_error_law")
    grid = grid_of(codecs, modes, bounds, stages, seeds)._replace(trainings=bool(trainings))
    tasks = _tasks(build, data, epochs, batch_size, metric)
    there = Folder(folder)
    there.begin(_identity(tasks), grid._asdict())
    cells = list(grid.cells(list(tasks)))
    _Running(tasks, grid, there).run(cells, progress)
    return Study(folder)


def _tasks(
    build: Any, data: Any, epochs: int, batch_size: int, metric: str | None
) -> dict[str, TrainingTask]:
    builds = dict(build) if isinstance(build, Mapping) else {_NETWORK: build}
    for name, function in builds.items():
        if not callable(function) or not re.fullmatch(r"[\w.-]+", str(name)):
            raise ValueError(
                "`build` must be a function, or functions by names of letters, digits, '-', '_' and '.'. "
                f"Received: {name!r}: {function!r}."
            )
    several = isinstance(data, Mapping)
    missing = sorted(set(builds) - set(data)) if several else []
    if missing:
        raise ValueError(f"`data` must have an entry for each network. Received: none for {missing[0]!r}.")
    shared = None if several else data_of(data)
    tasks = {}
    for name, function in builds.items():
        found: Any = shared or data_of(data[name])
        task = TrainingTask(
            function,
            found,
            arguments.whole("epochs", epochs),
            arguments.whole("batch_size", batch_size),
            metric or "",
        )
        tasks[name] = task._replace(metric=metric or _metric(task, found))
    return tasks


def _metric(task: TrainingTask, data: Data) -> str:
    return metric_of(task.model(0), data, task.batch_size)


def _identity(tasks: Mapping[str, TrainingTask]) -> dict[str, Any]:
    """What all cells depend on."""
    first = next(iter(tasks.values()))
    return {
        "networks": {name: _fingerprint(task.model(0)) for name, task in tasks.items()},
        "data": {name: task.data.fingerprint() for name, task in tasks.items()},
        "metric": {name: task.metric for name, task in tasks.items()},
        "epochs": first.epochs,
        "batch_size": first.batch_size,
    }


def _fingerprint(model: keras.Model) -> str:
    """Of its layers, their options and weights, and of how it is compiled, as far as Keras can write that down."""
    parts = [fingerprint(model)]
    for config in (model.get_config, model.get_compile_config):
        try:
            parts.append(json.dumps(config(), sort_keys=True, default=lambda value: type(value).__name__))
        except (NotImplementedError, TypeError, ValueError):
            parts.append("")
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


class _Running:
    """A study that is being measured."""

    def __init__(self, tasks: Mapping[str, TrainingTask], grid: Grid, folder: Folder):
        self._tasks = tasks
        self._grid = grid
        self._folder = folder
        self._probes: dict[str, Probe] = {}
        self._stage: tuple[tuple[str, str], ProbedStage] | None = None

    def run(self, cells: Sequence[Cell], progress: bool) -> None:
        """Measures what is missing of the cells."""
        seconds = {cell: record["seconds"] for cell, record in self._folder.cells().items()}
        left = [cell for cell in cells if cell not in seconds]
        console = Console(stderr=True, quiet=not progress)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
        )
        with Progress(*columns, console=console) as shown:
            bar = shown.add_task("", total=len(cells), completed=len(cells) - len(left), left="")
            for number, cell in enumerate(left):
                remaining = time_left(left[number:], seconds)
                shown.update(bar, description=_words(cell), left=remaining)
                seconds[cell] = self._measure(cell)
                shown.advance(bar)

    def _measure(self, cell: Cell) -> float:
        """Writes a cell; the seconds that it took."""
        began = time.perf_counter()
        try:
            rows = self._rows(cell)
        except Exception as error:
            if cell.setting == PLAIN_TRAINING:  # the user's own network or data, and not the codec
                raise
            logging.warning("%s: %s", _words(cell), error)
            rows = [{"problem": f"{type(error).__name__}: {error}"[:500]}]
        seconds = time.perf_counter() - began
        self._folder.append(cell, rows, seconds)
        gc.collect()
        return seconds

    def _rows(self, cell: Cell) -> list[dict[str, Any]]:
        task = self._tasks[cell.network]
        if cell.kind == TENSORS:
            keras.utils.set_random_seed(cell.seed)  # for codecs that round at random
            return self._stage_of(cell).rows(cell.setting)
        first = cell.seed == self._grid.seeds[0]
        stages = self._stages(cell.network) if first and cell.setting == PLAIN_TRAINING else {}
        return [train(task, cell.setting, cell.seed, measured=first, stages=stages)]

    def _stages(self, network: str) -> dict[int, Callable[[keras.Model], None]]:
        """What writes the weights of the stages of a network's plain training, by step."""
        task, seed = self._tasks[network], self._grid.seeds[0]
        writers: dict[int, list[str]] = {}
        for stage in self._grid.stages:
            writers.setdefault(task.stage_step(stage), []).append(stage)

        def write(model: keras.Model, names: list[str]) -> None:
            for name in names:
                self._folder.put_weights(network, name, seed, model.get_weights())

        return {step: partial(write, names=names) for step, names in writers.items()}

    def _stage_of(self, cell: Cell) -> ProbedStage:
        key = cell.network, cell.stage
        if self._stage is None or self._stage[0] != key:
            task = self._tasks[cell.network]
            weights = self._folder.weights(cell.network, cell.stage, cell.seed)
            if weights is None:
                train(task, PLAIN_TRAINING, cell.seed, measured=False, stages=self._stages(cell.network))
                weights = self._folder.weights(cell.network, cell.stage, cell.seed)
                assert weights is not None  # that training writes all stages
            if cell.network not in self._probes:
                self._probes = {cell.network: Probe(task.model(cell.seed), *task.first_batch())}
            self._stage = key, ProbedStage(self._probes[cell.network], weights)
        return self._stage[1]


def time_left(cells: Sequence[Cell], seconds: Mapping[Cell, float]) -> str:
    """What cells will take, by the medians of those alike that are finished; "" where there are none alike."""
    alike: dict[tuple[str, str], list[float]] = {}
    for cell, took in seconds.items():
        alike.setdefault((cell.kind, cell.network), []).append(took)
    kinds = [(cell.kind, cell.network) for cell in cells]
    if not set(kinds) <= set(alike):
        return ""
    total = sum(statistics.median(alike[kind]) for kind in kinds)
    hours, rest = divmod(round(total), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02} left"


def _words(cell: Cell) -> str:
    where = f"seed {cell.seed}" if cell.kind == TRAINING else cell.stage
    return " ".join(filter(None, (cell.kind, cell.network, str(cell.setting), where)))
