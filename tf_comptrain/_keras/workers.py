"""Several processes that train one model: the workers of a tf.distribute.MultiWorkerMirroredStrategy.

Outside of the steps the workers are programs of their own. What is called together here every worker must call, in the
same order: each waits for the others there.

Private: `context` (TensorFlow 2.21, 2.15).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.python.eager import context

_CHUNK_BYTES = 1 << 24
_totals: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # strategy -> `_total_of` it


def are_workers(strategy: Any) -> bool:
    """Whether the replicas of a strategy are in several processes.

    Private: `StrategyExtended._in_multi_worker_mode` (TensorFlow 2.21, 2.15).
    """
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return several and strategy.extended._in_multi_worker_mode()


def has_run() -> bool:
    """Whether TensorFlow has run something already, after which it connects no workers.

    Private: `Context._initialized` (TensorFlow 2.21, 2.15).
    """
    return bool(context.context()._initialized)


def connect_workers() -> tf.distribute.MultiWorkerMirroredStrategy:
    """Connects this process with the others that TF_CONFIG names.

    Raises:
      RuntimeError: TensorFlow has run something already.
    """
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # How many steps an epoch has is known: the workers need not ask each other before each whether there is one.
    strategy.extended.experimental_enable_get_next_as_optional = False
    return strategy


def worker_count(strategy: Any) -> int:
    """How many processes a strategy of several has.

    Private: `StrategyExtended._num_workers` (TensorFlow 2.21, 2.15).
    """
    return strategy.extended._num_workers


def worker_number(strategy: Any) -> int:
    """Of this process, from 0.

    Private: `StrategyExtended._id_in_cluster` (TensorFlow 2.21, 2.15).
    """
    return strategy.extended._id_in_cluster


def total(strategy: Any, values: np.ndarray) -> np.ndarray:
    """Sum of an array over the workers, in its own type. Called together.

    Args:
      strategy: Of several workers.
      values: int32 or int64, of the same shape in each.
    """
    if strategy not in _totals:
        _totals[strategy] = _total_of(strategy)
    return _totals[strategy](tf.constant(values)).numpy()


def _total_of(strategy: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    local = strategy.num_replicas_in_sync // worker_count(strategy)

    def on_replica(values: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        counts = tf.cast(tf.equal(context.replica_id_in_sync_group % local, 0), values.dtype)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, counts * values)

    @tf.function(reduce_retracing=True)
    def sum_of(values: tf.Tensor) -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(on_replica, args=(values,)))[0]

    return sum_of


def largest(strategy: Any, value: int) -> int:
    """Largest of the workers' numbers; of a strategy of one process the number. Called together."""
    if not are_workers(strategy):
        return value
    values = np.zeros(worker_count(strategy), np.int64)
    values[worker_number(strategy)] = value
    return int(total(strategy, values).max())


def from_first(strategy: Any, content: bytes) -> bytes:
    """What the first worker gives. Called together."""
    first = worker_number(strategy) == 0
    length = int(total(strategy, np.array([len(content) if first else 0], np.int64))[0])
    received = []
    for start in range(0, length, _CHUNK_BYTES):
        chunk = np.zeros(-(-min(_CHUNK_BYTES, length - start) // 4) * 4, np.uint8)
        if first:
            part = np.frombuffer(content, np.uint8)[start : start + _CHUNK_BYTES]
            chunk[: len(part)] = part
        received.append(total(strategy, chunk.view(np.int32)).tobytes())
    return b"".join(received)[:length]


def of_all_workers(strategy: Any, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
    """What each worker has, in order. Called together.

    Args:
      strategy: Of several workers.
      arrays: Of this worker; of the same types and shapes in all.
    """
    own = np.frombuffer(b"".join(array.tobytes() for array in arrays), np.uint8)
    table = np.zeros((worker_count(strategy), -(-own.size // 4) * 4), np.uint8)
    table[worker_number(strategy), : own.size] = own
    rows = total(strategy, table.view(np.int32)).view(np.uint8)
    ends = np.cumsum([array.nbytes for array in arrays])[:-1]
    return [
        [
            part.copy().view(array.dtype).reshape(array.shape)
            for part, array in zip(np.split(row, ends), arrays)
        ]
        for row in rows[:, : own.size]
    ]


def set_step_maker(model: keras.Model, make: Callable[[Callable], Callable]) -> None:
    """Has `make` turn the model's train and test steps into what Keras calls with an iterator.

    Private: `Model._make_function` (Keras 3.15).
    """
    model.__dict__["_make_function"] = make


def optionals_as_none(model: keras.Model, step: Callable) -> Callable:
    """A step for batches in which a tf.experimental.Optional stands for None, as in Keras' datasets.

    Private: `Model._autoconvert_optionals` (Keras 3.15).
    """
    return model._autoconvert_optionals(step)
