"""Trainings of a study: networks, data, and one training with its record."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, memory
from tf_comptrain.compression.instrumentation import is_compressed
from tf_comptrain.compression.model import compress_model
from tf_comptrain.memory.explain import trace_model
from tf_comptrain.memory.measure import measure_steps
from tf_comptrain.memory.trace import NothingRecordedError
from tf_comptrain.study.grid import PLAIN_TRAINING, STAGES, Candidate

_MEASURED_STEPS = 3
_TIMELINE_PARTS = 100
# Words of the names of metrics of which more is better; Keras calls the intersection over union "io_u".
_HIGHER_IS_BETTER = re.compile(
    r"accuracy|precision|recall|specificity|sensitivity|similarity|io_?u(?![a-z])|true_(?:positive|negative)s"
    r"|(?<![a-z])(?:acc|auc|dice|f1|fbeta|r2|psnr|ssim|bleu|rejection|score)(?![a-z])"
)


class Data(NamedTuple):
    """Arrays, or structures of arrays, whose first dimension counts samples.

    Attributes:
      train: (x, y).
      validation: (x, y).
    """

    train: tuple[Any, Any]
    validation: tuple[Any, Any]

    def fingerprint(self) -> str:
        """Of all bytes."""
        code = 0
        for array in tf.nest.flatten(tuple(self)):
            code = zlib.crc32(f"{array.dtype}{array.shape}".encode(), code)
            code = zlib.crc32(array.tobytes(), code)
        return f"{code:08x}"


class TrainingTask(NamedTuple):
    """A network with its data, and how it trains.

    Attributes:
      build: Returns the network anew, compiled.
      data: What it trains and is measured with.
      epochs: Passes over the data.
      batch_size: Samples a step.
      metric: What it is measured by: a key of the logs of `fit`.
    """

    build: Callable[[], keras.Model]
    data: Data
    epochs: int
    batch_size: int
    metric: str

    def model(self, seed: int) -> keras.Model:
        """The network, begun with a seed, with the names that it has in a process of its own.

        Raises:
          ValueError: It is no model, not compiled, compressed, or compiled for XLA.
        """
        keras.utils.set_random_seed(seed)
        with _keras.names_anew():
            model = self.build()
        if not isinstance(model, keras.Model) or not _keras.is_compiled(model):
            raise ValueError(f"`build` must return a compiled keras.Model. Received: {model!r}.")
        if is_compressed(model):
            raise ValueError(
                "`build` must return the plain model: a study compresses it itself. "
                f"Received: {model.name!r}, which is compressed."
            )
        if _keras.jit_compile(model):
            raise ValueError(
                "`build` must compile the model with jit_compile=False: a study runs on TensorFlow's executor, since "
                "other compressors do not run under XLA; its codec 'fixed' is what XLA has. "
                f"Received: {model.name!r} with jit_compile=True."
            )
        return model

    def batches(self, seed: int) -> keras.utils.PyDataset:
        """The training data, in an order of the seed's, another one in each epoch."""
        return _Batches(self.data.train, self.batch_size, seed)

    def first_batch(self) -> tuple[Any, Any]:
        """Of the data's own order."""
        return tf.nest.map_structure(lambda a: tf.convert_to_tensor(a[: self.batch_size]), self.data.train)

    def stage_step(self, stage: str) -> int:
        """After how many steps of a training a stage is."""
        steps = self.epochs * len(self.batches(0))
        share = STAGES[stage]
        return 0 if not share else max(round(share * steps), 1)


def train(
    task: TrainingTask,
    setting: Candidate,
    seed: int,
    measured: bool,
    stages: Mapping[int, Callable[[keras.Model], None]] | None = None,
) -> dict[str, Any]:
    """Trains once; the numbers for the table.

    Args:
      task: What.
      setting: How tensors are held; "plain": plain Keras.
      seed: Of the weights, the order of the data and what layers draw.
      measured: Also measure steps: time, peak, saved bytes, memory over time.
      stages: What is called with the model, by number of steps done.

    Raises:
      ValueError: `fit` does not log the metric, or plain training diverges.
    """
    began = time.perf_counter()
    model = task.model(seed)
    if setting != PLAIN_TRAINING:
        compress_model(model, codec=setting.made(), error_bound=setting.error_bound())
    watch = _Watch(stages or {})
    watch.begin(model)
    history = model.fit(
        task.batches(seed),
        epochs=task.epochs,
        validation_data=task.data.validation,
        validation_batch_size=task.batch_size,
        shuffle=False,
        verbose=0,
        callbacks=[watch],
    ).history
    if task.metric not in history:
        raise ValueError(
            f"`metric` must be among what `fit` logs: {', '.join(map(repr, history))}. Received: {task.metric!r}."
        )
    if setting == PLAIN_TRAINING and not np.isfinite(history["loss"]).all():
        raise ValueError(
            f"Plain training of {model.name!r} with seed {seed} ends with loss {history['loss'][-1]}: nothing can be "
            "compared with it. Lower its learning rate, or look at the data."
        )
    row: dict[str, Any] = {
        "metric": float(history[task.metric][-1]),
        "loss": float(history["loss"][-1]),
        "history": [float(value) for value in history[task.metric]],
        "train_s": time.perf_counter() - began,
    }
    if measured:
        row |= _of_a_step(model, task.first_batch())
    return row


def _of_a_step(model: keras.Model, batch: tuple[Any, Any]) -> dict[str, Any]:
    """What a step on a batch takes, and on the half of it: a line through both says what larger batches would."""
    found = memory.measure_step(model, *batch, steps=_MEASURED_STEPS)
    samples = len(tf.nest.flatten(batch)[0])
    half = tf.nest.map_structure(lambda a: a[: max(samples // 2, 1)], batch)
    peak_of_half, *_ = measure_steps(model, half[0], half[1], _MEASURED_STEPS)
    try:
        timeline = trace_model(model, *batch).levels(_TIMELINE_PARTS)
    except NothingRecordedError:  # TensorFlow records no small tensors
        timeline = None
    return {
        "samples": samples,
        "step_s": found.step_s,
        "peak_bytes": found.peak_bytes,
        "saved_bytes": found.saved_bytes,
        "saved_plain_bytes": found.saved_plain_bytes,
        "half_batch_peak_bytes": peak_of_half,
        "timeline": timeline,
    }


def metric_of(model: keras.Model, data: Data, batch_size: int) -> str:
    """The first metric of a model on the validation data; the loss where it has none."""
    x, y = tf.nest.map_structure(lambda a: tf.convert_to_tensor(a[:batch_size]), data.validation)
    logs = model.test_on_batch(x, y, return_dict=True)
    return f"val_{next((name for name in logs if name != 'loss'), 'loss')}"


def data_of(data: Any) -> Data:
    """What `data` gives: itself, or what it returns.

    Raises:
      ValueError: Not ((x, y), (x, y)) of arrays with samples.
    """
    found = data() if callable(data) else data
    try:
        (x, y), (x_val, y_val) = found
        made = Data(*tf.nest.map_structure(np.asarray, ((x, y), (x_val, y_val))))
        counts = [{len(a) for a in tf.nest.flatten(part)} for part in made]
    except (TypeError, ValueError):
        counts = []
    if [len(count) for count in counts] != [1, 1] or 0 in counts[0] | counts[1]:
        raise ValueError(
            "`data` must be, or return, ((x, y), (x_validation, y_validation)): arrays, or structures of arrays, with "
            f"as many samples in x as in y. Received: {str(found)[:80]!r}."
        )
    return made


class _Watch(keras.callbacks.Callback):
    """Calls what is to be called after so many steps."""

    def __init__(self, stages: Mapping[int, Callable[[keras.Model], None]]):
        super().__init__()
        self._stages, self._step = stages, 0

    def begin(self, model: keras.Model) -> None:
        if 0 in self._stages:
            self._stages[0](model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._step += 1
        if self._step in self._stages:
            self._stages[self._step](self.model)


_Dataset: Any = getattr(keras.utils, "PyDataset", None) or keras.utils.Sequence  # of Keras 2


class _Batches(_Dataset):
    """Batches of arrays; samples that do not fill the last one wait for another epoch."""

    def __init__(self, data: tuple[Any, Any], batch_size: int, seed: int):
        super().__init__()
        self._data, self._seed, self._epoch = data, seed, 0
        self._count = len(tf.nest.flatten(data)[0])
        self._batch = min(batch_size, self._count)
        self._draw()

    def __len__(self) -> int:
        return self._count // self._batch

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        chosen = self._order[index * self._batch : (index + 1) * self._batch]
        return tf.nest.map_structure(lambda a: a[chosen], self._data)

    def on_epoch_end(self) -> None:
        self._epoch += 1
        self._draw()

    def _draw(self) -> None:
        self._order = np.random.default_rng((self._seed, self._epoch)).permutation(self._count)


def epochs_to(history: Sequence[float], target: float, is_higher_better: bool) -> int | None:
    """The first epoch, from 1 on, after which a metric has reached a target; None where none has."""
    reached = (value >= target if is_higher_better else value <= target for value in history)
    return next((epoch for epoch, there in enumerate(reached, 1) if there), None)


def is_higher_better(metric: str) -> bool:
    """Whether more of a metric is better, by its name."""
    return _HIGHER_IS_BETTER.search(metric.lower()) is not None
