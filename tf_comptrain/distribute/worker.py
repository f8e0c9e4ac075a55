"""Training by several workers: `ct.distribute.fit`."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow import keras

from tf_comptrain import _keras, arguments
from tf_comptrain.compression.instrumentation import instrumentation, is_compressed
from tf_comptrain.distribute import steps
from tf_comptrain.distribute.cluster import connect
from tf_comptrain.training import checks, resilient_fit, snapshot
from tf_comptrain.training.process import Process
from tf_comptrain.training.samples import Samples, distributed
from tf_comptrain.training.settings import Settings
from tf_comptrain.training.snapshot import Snapshot

# Their files are those of the whole training: one process writes them.
_WRITERS = (keras.callbacks.CSVLogger, keras.callbacks.ModelCheckpoint, keras.callbacks.TensorBoard)


def fit(
    build: Callable[[], keras.Model],
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int = 32,
    epochs: int = 1,
    snapshot_every: int = 100,
    checkpoint_dir: str | Path | None = None,
    shuffle: bool | int = True,
    seed: int = 0,
    sample_weight: Any = None,
    validation_data: Any = None,
    callbacks: Any = None,
    verbose: int = 1,
) -> keras.callbacks.History:
    """Trains one model by several processes, each with a part of every batch: the workers that TF_CONFIG names.

    Every worker runs the same script, and calls this in the same way; `tf-comptrain launch -n 4 train.py` starts such
    workers on one machine. Without TF_CONFIG the one process trains alone, as `ct.fit` does, on all of the machine's
    GPUs.

    The weights are the same on each worker after every step, and so are metrics, logs, the error bounds and the
    statistics that they follow, and the moving statistics of batch normalizations (means over the replicas): callbacks
    decide alike everywhere. CSVLogger, ModelCheckpoint and TensorBoard run on the first worker, which alone prints and
    writes the checkpoint. Others run on each worker. Where one ends the training (`model.stop_training`), all end it at
    the next snapshot or the end of the epoch.

    A worker that fails or is killed ends the training: within half a minute the others raise an error.
    The same call on all workers anew goes on from the last checkpoint, in the middle of an epoch too; after
    `tf.config.experimental.enable_op_determinism()` to the same weights, bit for bit, as a training that was not
    interrupted, with the same number of workers.

    Args:
      build: Makes the compiled model, compressed or not; called in the scope of the strategy, after the seeds
        of Python, NumPy and TensorFlow were set to `seed`. On TensorFlow's executor: no `jit_compile=True`.
      x: As for `ct.fit`: all the samples, on each worker in the same order, of which it takes its part. Where TF_CONFIG
        names several workers NumPy arrays, or a function from the epoch to a dataset: see `connect`.
      y: As for `ct.fit`.
      batch_size: Samples per batch, over all workers; at least one for each replica.
      epochs: As for `ct.fit`.
      snapshot_every: As for `ct.fit`.
      checkpoint_dir: Folder of the state on disk, read and written by the first worker.
      shuffle: As for `ct.fit`.
      seed: Of the shuffling, and of the model.
      sample_weight: As for `ct.fit`.
      validation_data: As for `ct.fit`; a last batch of fewer samples than there are replicas is left out.
      callbacks: As for `ct.fit`; made anew on each worker.
      verbose: As for `ct.fit`, on the first worker.

    Returns:
      The History, on each worker; its `model` is the trained model.

    Raises:
      ValueError: As for `ct.fit`; TF_CONFIG, or XLA. What the workers were given is not the same on all.
      TypeError: As for `ct.fit`; `build` is no function, or makes no model.
      RuntimeError: TensorFlow ran something before the workers were connected. Others as for `ct.fit`.
      tf.errors.UnavailableError: Another worker does not answer any more.
      tf.errors.ResourceExhaustedError: Out of memory, on this worker. The others end, too.

    Examples:
      >>> def build():
      ...     model = keras.applications.ResNet50(weights=None, classes=10)
      ...     ct.compress_model(model)
      ...     model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
      ...     return model
      >>> history = ct.distribute.fit(build, images, labels, batch_size=256, epochs=20, checkpoint_dir="run1")
      >>> if ct.distribute.is_first_worker():
      ...     history.model.save("model.keras")
    """
    _keras.require_keras_3("tf_comptrain.distribute.fit", "Use model.fit")
    if not callable(build) or isinstance(build, keras.Model):
        raise TypeError(
            "`build` must be a function without arguments that makes the compiled model, so that its variables are "
            f"made where the workers have them. Received: {type(build).__name__}."
        )
    strategy = connect()
    keras.utils.set_random_seed(arguments.whole("seed", seed, least=0))
    with strategy.scope():
        model = build()
    checks.check_model(model)
    process = Process()
    if _keras.are_workers(strategy):
        _check_model(model)
        steps.average(model, lambda: _states(model))
        process = worker = TrainingWorker(strategy)
        callbacks = worker.own(callbacks)
        verbose = verbose if worker.leads else 0
    settings = Settings(
        batch_size, epochs, snapshot_every, checkpoint_dir, validation_data, callbacks, verbose
    )

    def samples() -> Samples:
        made = Samples(x, y, sample_weight, shuffle, seed)
        if _keras.are_workers(strategy):
            _check_alike(strategy, made, batch_size, epochs)
        return made

    return resilient_fit.train(model, settings, samples, process)


class TrainingWorker(Process):
    """One of several processes that train one model.

    Args:
      strategy: Of all of them.
    """

    goes_back = False

    def __init__(self, strategy: Any):
        self._strategy = strategy
        self.leads = _keras.worker_number(strategy) == 0

    def own(self, callbacks: Any) -> Any:
        """Those of the callbacks that run on this worker."""
        checks.check_callbacks(callbacks)
        if self.leads or callbacks is None:
            return callbacks
        given = tf.nest.flatten(getattr(callbacks, "callbacks", callbacks))
        return [callback for callback in given if not isinstance(callback, _WRITERS)]

    def read(self, folder: Path) -> tuple[Snapshot, dict[str, Any]] | None:
        """What the first worker reads: the folder may be its own."""
        found = snapshot.content(folder) if self.leads else b""
        content = _keras.from_first(self._strategy, found)
        if not content:
            return None
        if self.leads:
            return snapshot.read(folder)
        with tempfile.TemporaryDirectory() as copy:
            snapshot.put_content(Path(copy), content)
            return snapshot.read(Path(copy))

    def ends_now(self, model: keras.Model) -> bool:
        """Not here: to ask the others takes a message."""
        return False

    def ends(self, model: keras.Model) -> bool:
        """Whether a callback of any worker has ended the training."""
        model.stop_training = _keras.largest(self._strategy, int(model.stop_training)) > 0
        return model.stop_training

    def evaluate(self, model: keras.Model, data: Any, batch: int, callbacks: Any) -> dict:
        if not isinstance(data, tf.data.Dataset):
            x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
            data = Samples(x, y, weight, shuffle=False, seed=0).batches(0, 0, batch)
        return steps.evaluate(model, distributed(data, model), callbacks)


def _check_alike(strategy: Any, samples: Samples, batch_size: int, epochs: int) -> None:
    """Holds what the workers were given against each other, before they train on. Called together.

    Raises:
      ValueError: It is not the same on all.
    """
    first = samples.batches(0, 0, batch_size)
    arrays = [np.asarray(array) for array in tf.nest.flatten(next(iter(first)))]
    own = {
        "`batch_size`": batch_size,
        "`epochs`": epochs,
        "`seed`": samples.seed,
        "`shuffle`": int(samples.shuffle),
        "the number of samples": samples.count(0),
        "types and shapes of the samples": zlib.crc32(str(first.element_spec).encode()),
        "the first batch": zlib.crc32(b"".join(array.tobytes() for array in arrays)),
    }
    of_all = [
        list(found[0]) for found in _keras.of_all_workers(strategy, [np.array(list(own.values()), np.int64)])
    ]
    for name, values in zip(own, zip(*of_all)):
        if len(set(values)) > 1:
            digest = "digests " if name in ("types and shapes of the samples", "the first batch") else ""
            each = ", ".join(f"{value} on worker {number}" for number, value in enumerate(values))
            raise ValueError(
                "Workers must be given the same, all of the samples in the same order, and each takes its part. "
                f"{name} differs: {digest}{each}."
            )


def _check_model(model: keras.Model) -> None:
    if _keras.jit_compile(model):
        raise ValueError(
            "`build` must make a model that is compiled with jit_compile=False: XLA does not compile what workers tell "
            "each other. Received one with jit_compile=True."
        )
    if model.steps_per_execution != 1:
        raise ValueError(
            "`build` must make a model that is compiled with steps_per_execution=1. "
            f"Received one with {model.steps_per_execution}."
        )
    optimizer = model.optimizer
    for name, none in (("use_ema", False), ("gradient_accumulation_steps", None)):
        value = getattr(optimizer, name, none)
        if value != none:
            raise ValueError(
                f"The optimizer of `build` must be without `{name}`, which Keras runs on one device alone. "
                f"Received: {value!r}."
            )
    for name in ("clipnorm", "global_clipnorm", "clipvalue"):
        value = getattr(optimizer, name, None)
        if value is not None:
            logging.warning(
                "%s=%g clips what each replica's share of the batch adds to the gradient, as Keras has it under a "
                "strategy, not the gradient: with n replicas a limit of %g / n is nearest to that of one process.",
                name,
                value,
                value,
            )


def _states(model: keras.Model) -> list:
    """What the replicas write each for itself, and all must have alike: to encode alike, and to save one model."""
    found = _keras.moving_statistics(model)
    if is_compressed(model):
        handle = instrumentation(model)
        found += [*handle.codec_states(), *handle.statistics()]
    return found
