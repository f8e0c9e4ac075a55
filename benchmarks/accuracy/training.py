"""One training of a task's network by an arm, and the record of it.

A model is built and traced once for each arm, and begins every run anew: the weights of the run's seed, which are the
same for all arms, and the states of its dropout; the optimizer's variables as they were; the states of all streams at
zero. Tracing for each run would take 10 to 20% longer. `tests/benchmarks/test_equivalence.py` holds that a run is the
same to the bit whatever was trained before it.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import data
import keras
import networks
import numpy as np
import tensorflow as tf
from arms import ARMS
from meter import Meter
from tasks import Task

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation, is_compressed

_TEST_BATCH = 500


class Machine(NamedTuple):
    """What a run's roundings depend on, and what made it.

    Attributes:
      kind: Architecture and the vector units that TensorFlow's kernels choose among: runs on machines of different
        kinds round differently.
      commit: The last one that changed what is tested, the package and its C++ code; "-dirty" where they are changed
        since; None outside of a repository.
      version: Of tf_comptrain.
      tensorflow: Its version.
    """

    kind: str
    commit: str | None
    version: str
    tensorflow: str


def this_machine() -> Machine:
    return Machine(_kind(), _commit(), ct.__version__, tf.__version__)


def _commit() -> str | None:
    tested = ("--", "tf_comptrain", "cc")
    last, changes = _git("log", "-1", "--format=%h", *tested), _git("status", "--porcelain", *tested)
    return f"{last}-dirty" if last and changes else last


def _git(*command: str) -> str | None:
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run(["git", *command], cwd=root, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def _kind() -> str:
    if tf.config.list_physical_devices("GPU"):
        details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
        return f"GPU {details.get('device_name', '')}"
    cpu = Path("/proc/cpuinfo")
    flags = cpu.read_text().split("\n\n")[0].split() if cpu.exists() else []
    units = [unit for unit in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if unit in flags]
    return " ".join([platform.machine(), *units])


class Averaged(keras.callbacks.Callback):
    """The mean of the weights after each of the last epochs."""

    def __init__(self, epochs: int, averaged: int):
        super().__init__()
        self._first, self._sums, self._count = epochs - averaged, None, averaged

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= self._first:
            weights = self.model.get_weights()
            self._sums = weights if self._sums is None else [a + b for a, b in zip(self._sums, weights)]

    def put(self) -> None:
        """Gives them to the model."""
        self.model.set_weights([total / self._count for total in self._sums])


class _Traced(NamedTuple):
    """A model of an arm, with what its optimizer begins with."""

    model: keras.Model
    callbacks: list
    optimizer: list[np.ndarray]


class Trainer:
    """Trains one task, by any arm.

    Args:
      task: What is trained.
      file: Its data; see `data.load` and `data.load_text`.
    """

    def __init__(self, task: Task, file: str):
        self.task = task
        self._traced: dict[str, _Traced] = {}
        if task.is_text:
            self._text = data.load_text(file)
            self._test = self._text.validation(task.context)
        else:
            self._images, x, y = data.load_apart(file, task.train)
            self._test = data.scaled(x), y

    def run(self, arm: str, seed: int, order: int) -> dict[str, Any]:
        """Trains once; the record."""
        task, start = self.task, (time.perf_counter(), time.process_time())
        batches = self._batches(seed, order)
        model, callbacks = self._begin(arm, seed, task.epochs * len(batches))
        meter, averaged = Meter(task.batch), Averaged(task.epochs, task.averaged)
        history = model.fit(
            batches, epochs=task.epochs, shuffle=False, verbose=0, callbacks=[*callbacks, meter, averaged]
        ).history
        extra = self._saved(arm, model, batches[0]) if seed == 1 and order == 0 else {}
        averaged.put()
        found = model.evaluate(*self._test, batch_size=_TEST_BATCH, verbose=0, return_dict=True)
        return {
            "arm": arm,
            "seed": seed,
            "order": order,
            "metric": found["loss"] if task.is_text else 100 * found["accuracy"],
            "test_loss": round(found["loss"], 6),
            "loss": [round(value, 5) for value in history["loss"]],
            "conv_ratio": round(meter.ratio(), 3),
            "step_cpu_s": round(statistics.median(meter.steps_cpu_s), 5),
            **extra,
            "bound_over_sigma": [round(value, 4) for value in history.get("bound_over_sigma", ())],
            "cpu_s": round(time.process_time() - start[1], 1),
            "wall_s": round(time.perf_counter() - start[0], 1),
        }

    def _batches(self, seed: int, order: int) -> keras.utils.PyDataset:
        task = self.task
        if task.is_text:
            return data.Passages(self._text, task.context, task.batch, task.steps, seed, order)
        return data.Batches(self._images, task.batch, seed, order, task.moved)

    def _begin(self, arm: str, seed: int, steps: int) -> tuple[keras.Model, list]:
        """The arm's model as if it had just been made with the seed."""
        keras.utils.set_random_seed(seed)
        fresh = networks.BUILDERS[self.task.network]()
        if arm not in self._traced:
            self._traced[arm] = self._trace(arm, steps)
        model, callbacks, optimizer = self._traced[arm]
        for ours, begins in zip(model.variables, fresh.variables):
            ours.assign(begins)
        for variable, begins in zip(model.optimizer.variables, optimizer):
            variable.assign(begins)
        if is_compressed(model):
            states = instrumentation(model).held.table.variable
            states.assign(tf.zeros_like(states))
        return model, callbacks

    def _trace(self, arm: str, steps: int) -> _Traced:
        model = networks.BUILDERS[self.task.network]()
        model.compile(
            _optimizer(self.task, steps),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[] if self.task.is_text else ["accuracy"],
            jit_compile=self.task.jit_compile,
        )
        callbacks = ARMS[arm].compress(model)
        model.optimizer.build(model.trainable_variables)
        return _Traced(model, callbacks, [variable.numpy() for variable in model.optimizer.variables])

    def _saved(self, arm: str, trained: keras.Model, batch: tuple) -> dict[str, int]:
        """What a step holds, of another model with the same weights: the one that trains is to be traced once."""
        model = self._trace(arm, 1).model
        model.set_weights(trained.get_weights())
        if is_compressed(model):
            states = instrumentation(trained).held.table.values()
            instrumentation(model).held.table.put(states)
        return {"saved_bytes": ct.memory.saved_bytes(model, *(tf.constant(part) for part in batch))}


def _optimizer(task: Task, steps: int) -> keras.optimizers.Optimizer:
    if task.is_text:
        rate = keras.optimizers.schedules.CosineDecay(
            0.0, steps, alpha=0.01, warmup_target=task.rate, warmup_steps=steps // 20
        )
        return keras.optimizers.AdamW(rate, weight_decay=0.01, clipnorm=1.0)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=task.rate, warmup_steps=max(steps // 10, 1)
    )
    return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, weight_decay=5e-4)


def set_threads(count: int) -> None:
    """Of operations each, and of operations at a time one: before anything else."""
    os.environ["OMP_NUM_THREADS"] = str(count)
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(1)
