"""What `fit` does around the steps: datasets, epochs, callbacks.

Private: `trainer.TFEpochIterator`, `callback_list.ProgbarLogger`, `TFDatasetAdapter` (Keras 3.15);
  `TensorBoard._is_tracing`, `TensorBoard._profiler_started` (Keras 3.15, 2.15).
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain._keras.layers import strategy_scope
from tf_comptrain._keras.train_step import build_optimizer
from tf_comptrain._keras.version import KERAS_3, require_keras_3

if KERAS_3:
    from keras.src.backend.tensorflow import trainer as _trainer
    from keras.src.callbacks import callback_list as _callback_list
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter as _DatasetAdapter

_scopes = threading.local()
_MOST_AHEAD = 64
# Attributes of callbacks that say what this process is doing (TensorBoard's profiler), not how far a training is.
PROCESS_ATTRIBUTES = ("_is_tracing", "_profiler_started")


def batching_of(dataset: tf.data.Dataset) -> str | None:
    """The transformation that made batches of a dataset's elements; None if none did.

    Private: `Dataset._inputs` and the names of its classes (TensorFlow 2.21, 2.15).
    """
    while True:
        name = type(dataset).__name__.lstrip("_")
        if "Batch" in name and "Unbatch" not in name:
            return name
        inputs = dataset._inputs()
        if len(inputs) != 1 or "Unbatch" in name or "FlatMap" in name:
            return None
        dataset = inputs[0]


def batches_in_flight(iterator: Any) -> int:
    """Batches that a dataset's iterator holds between steps: those made ahead, or that of before and one looked at.

    Private: `OwnedIterator._dataset`, `Dataset._input_dataset`, `_buffer_size` and `_num_parallel_calls` of
      transformations, and what these are left to themselves (TensorFlow 2.21).
    """
    ahead, dataset = 0, getattr(iterator, "_dataset", None)
    element = getattr(dataset, "element_spec", None)
    while dataset is not None and dataset.element_spec == element:  # else of what batches are made of
        by_itself = {"_buffer_size": 1, "_num_parallel_calls": min(os.cpu_count() or 1, 16)}
        for name, usual in by_itself.items():
            size = getattr(dataset, name, None)
            if size is not None:
                ahead += usual if int(size) == tf.data.AUTOTUNE else int(size)
        if "Batch" in type(dataset).__name__:
            break
        dataset = getattr(dataset, "_input_dataset", None)
    return min(max(ahead, 2), _MOST_AHEAD)


def follow_cardinality() -> None:
    """From now on `fit` asks an elastic dataset for its number of batches at each epoch, not only at the first.

    An epoch of exactly that many steps ends without a step on no data, which would advance
    `optimizer.iterations`. The progress bar follows too. Where the dataset is resized in the middle of an epoch,
    `fit` reads it anew for the samples that are left.

    Private: `EpochIterator._enumerate_iterator`, `EpochIterator._num_batches`, `TFDatasetAdapter._dataset`
      (Keras 3.15).
    """
    require_keras_3("A batch size that changes from epoch to epoch", "Use a fixed one")
    if _trainer.TFEpochIterator.__name__ == "_FollowingIterator":
        return

    class _FollowingIterator(_trainer.TFEpochIterator):
        _num_batches: Any

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            _scopes.epochs = weakref.ref(self)
            self.elastic = getattr(getattr(self.data_adapter, "_dataset", None), "elastic", None)

        def _enumerate_iterator(self) -> Any:
            _scopes.epochs = weakref.ref(self)  # once more: validation makes one too
            elastic = self.elastic
            if elastic is None or self.steps_per_epoch:
                yield from super()._enumerate_iterator()
                return
            left = elastic.samples
            while left > 0 and elastic.steps_in(left) > 0:
                size, self._num_batches = elastic.size, elastic.steps_in(left)
                for steps in super()._enumerate_iterator():
                    yield steps
                    left -= size * self.steps_per_execution
                    if elastic.size != size:
                        break
                else:
                    return

    class _FollowingProgbar(keras.callbacks.ProgbarLogger):
        def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
            epochs = _current_epochs()
            if batch == 0 and epochs is not None and epochs.elastic is not None:
                self.target = self.progbar.target = epochs.num_batches
            super().on_train_batch_begin(batch, logs)

    _trainer.TFEpochIterator = _FollowingIterator
    _callback_list.ProgbarLogger = _FollowingProgbar


def _current_epochs() -> Any:
    found = getattr(_scopes, "epochs", None)
    return found() if found is not None else None


def fitted_dataset() -> tf.data.Dataset | None:
    """In `on_train_begin`: the dataset that `fit` was called with, after `follow_cardinality`.

    Private: `TFDatasetAdapter._dataset` (Keras 3.15).
    """
    if getattr(_scopes, "fitting", None) is not None:
        return _scopes.fitting
    adapter = getattr(_current_epochs(), "data_adapter", None)
    return adapter._dataset if isinstance(adapter, _DatasetAdapter) else None


def unsteady_shuffle_of(dataset: tf.data.Dataset) -> str | None:
    """A shuffle that orders samples anew each time the dataset is read, or has no seed; None if none.

    Private: `Dataset._inputs`, `_ShuffleDataset._reshuffle_each_iteration`, `_ShuffleDataset._seed`,
      `_ShuffleDataset._seed2` (TensorFlow 2.21, 2.15).
    """
    if "Shuffle" in type(dataset).__name__:
        if getattr(dataset, "_reshuffle_each_iteration", True):
            return "a shuffle that reorders at each iteration"
        if int(getattr(dataset, "_seed", 0)) == 0 and int(getattr(dataset, "_seed2", 0)) == 0:
            return "a shuffle without a seed"
    return next(filter(None, map(unsteady_shuffle_of, dataset._inputs())), None)


def build_for_fit(model: keras.Model, batches: tf.data.Dataset) -> None:
    """Makes every variable of a training now (weights, slots, metrics), and the train function.

    Private: `Model._assert_compile_called`, `Model._symbolic_build` (Keras 3.15).
    """
    model._assert_compile_called("fit")
    with strategy_scope(model):
        model._symbolic_build(data_batch=batches.element_spec)
        build_optimizer(model)
    model.make_train_function()


def epoch_logs(model: keras.Model, logs: Any) -> dict:
    """The metrics over the epoch so far; the last step's logs where a train step makes its own.

    Private: `Model._get_metrics_result_or_logs` (Keras 3.15).
    """
    return dict(model._get_metrics_result_or_logs(logs))


@contextlib.contextmanager
def fitting(dataset: Any) -> Iterator[None]:
    """Inside, `fitted_dataset` answers `dataset`."""
    _scopes.fitting = dataset
    try:
        yield
    finally:
        _scopes.fitting = None
