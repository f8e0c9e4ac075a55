"""Train and test steps of several workers, of which all know the same."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras


def average(model: keras.Model, states: Callable[[], Iterable[Any]]) -> None:
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

        on_replica = _keras.optionals_as_none(owner, on_replica)

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

    _keras.set_step_maker(model, make_function)


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


def evaluate(model: keras.Model, batches: Any, callbacks: Any) -> dict:
    """What `model.evaluate` returns, of batches that the workers have each a part of. Called together.

    Args:
      model: After `average`.
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
    logs = _keras.epoch_logs(model, logs)
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
