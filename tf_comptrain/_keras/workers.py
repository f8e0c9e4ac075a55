"""Several processes that train one model: the workers of a tf.distribute.MultiWorkerMirroredStrategy.

Outside of the steps the workers are programs of their own. What is called together here every worker must call, in the
same order: each waits for the others there.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.python.eager import context

_CHUNK_BYTES = 1 << 24
_totals: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # strategy -> `_total_of` it


def are_workers(strategy: Any) -> bool:
    """Whether the replicas of a strategy are in several processes."""
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return several and strategy.extended._in_multi_worker_mode()


def has_run() -> bool:
    """Whether TensorFlow has run something already, after which it connects no workers."""
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
    return strategy.extended._num_workers


def worker_number(strategy: Any) -> int:
    """Of this process, from 0."""
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


def average_steps(model: keras.Model, states: Callable[[], Iterable[Any]]) -> None:
    """Makes the model's train and test functions such that run on workers, and of which all workers know the same.

    What a step returns is the mean over the replicas, and so are the states after it. Keras' own functions fail on
    several workers: they average a scalar over its first axis.

    Args:
      model: Made in the scope of a strategy of several workers.
      states: Variables that each replica writes for itself, whose mean is to be that of all. Asked when a step is
        traced.
    """
    reference, strategy = weakref.ref(model), model.distribute_strategy

    def make_function(step_function: Callable) -> Callable:
        owner: Any = reference()

        def on_replica(data: Any) -> Any:
            logs = step_function(data)
            return _averaged(logs, list(states()))

        on_replica = owner._autoconvert_optionals(on_replica)

        @tf.autograph.experimental.do_not_convert
        def step(data: Any) -> Any:
            logs = strategy.run(on_replica, args=(data,))
            return tf.nest.map_structure(lambda log: strategy.experimental_local_results(log)[0], logs)

        compiled: list[Any] = []  # by the first iterator, which knows what may differ from batch to batch

        def function(iterator: Any) -> Any:
            if not compiled:
                compiled.append(tf.function(step, input_signature=[iterator.element_spec]))
            return compiled[0](next(iterator))

        return function

    model.__dict__["_make_function"] = make_function


def _averaged(logs: Any, states: Sequence[Any]) -> Any:
    """The mean of logs and of states over all replicas, in one message; the states are set to it."""
    flat = [tf.convert_to_tensor(value) for value in (*tf.nest.flatten(logs), *states)]
    message = tf.concat([tf.reshape(tf.cast(value, tf.float32), [-1]) for value in flat], 0)
    context = tf.distribute.get_replica_context()
    sizes = [value.shape.num_elements() for value in flat]
    means = tf.split(context.all_reduce(tf.distribute.ReduceOp.MEAN, message), sizes)
    shaped = [tf.reshape(mean, value.shape) for mean, value in zip(means, flat)]
    count = len(flat) - len(states)
    for state, mean in zip(states, shaped[count:]):
        state.assign(tf.cast(mean, state.dtype))
    return tf.nest.pack_sequence_as(logs, shaped[:count])


def evaluate_batches(model: keras.Model, batches: Any, callbacks: Any) -> dict:
    """What `model.evaluate` returns, of batches that the workers have each a part of. Called together.

    Args:
      model: After `average_steps`.
      batches: From `distributed`.
      callbacks: Keras' container.
    """
    model.make_test_function()
    callbacks.on_test_begin()
    model.reset_metrics()
    logs: Any = {}
    iterator = _Ahead(iter(batches))
    for step in itertools.count():
        if iterator.ahead is None:
            break
        callbacks.on_test_batch_begin(step)
        logs = model.test_function(iterator)
        callbacks.on_test_batch_end(step, logs)
    logs = dict(model._get_metrics_result_or_logs(logs))
    callbacks.on_test_end(logs)
    return logs


class _Ahead:
    """An iterator that has the next element at hand; None after the last."""

    def __init__(self, iterator: Any):
        self.element_spec = iterator.element_spec
        self._iterator = iterator
        self.ahead = next(iterator, None)

    def __next__(self) -> Any:
        found, self.ahead = self.ahead, next(self._iterator, None)
        return found
