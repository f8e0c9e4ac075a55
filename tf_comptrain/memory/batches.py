"""A batch of random data that fits a model, for measurements that need no real data."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, arguments
from tf_comptrain.memory.counters import in_counted_memory


def batch_of(model: keras.Model, x: Any, y: Any) -> tuple:
    """Tensors (x, y): as given, or random where x is a batch size.

    Raises:
      ValueError: The model is not compiled; `y` is None where a loss needs it; see `random_batch`.
    """
    _keras.require_compiled(model)
    if isinstance(x, numbers.Integral):
        return random_batch(model, arguments.whole("batch_size", x))
    if y is None and model.loss is not None and not _keras.has_own_train_step(model):
        raise ValueError("`y` is missing: pass x and y, one batch of data, or a batch size as `x`.")
    x, y = (tuple(part) if isinstance(part, list) else part for part in (x, y))  # as `fit` does
    tensors = tf.nest.map_structure(tf.convert_to_tensor, (x,) if y is None else (x, y))
    return (*tensors, None) if y is None else tensors


def random_batch(model: keras.Model, batch_size: int) -> tuple:
    """(x, y): random inputs of the model's input shapes, the same in each call, and targets that its loss accepts.

    Floats are normal; integers are 0 or 1, in range for any embedding. Targets are zeros of the
    outputs' shapes, without the class dimension for a loss named "sparse", or a function that takes no others.

    Args:
      model: A compiled model with a graph (functional or built Sequential).
      batch_size: Samples.

    Raises:
      ValueError: The model has no input shapes, a dimension besides the batch is not known, or an input
        is of strings.
    """
    graph = _keras.functional_of(
        model
    )  # a Sequential model has no `input` and no `output` before its first call
    inputs, outputs = getattr(graph, "inputs", None), getattr(graph, "outputs", None)
    if not inputs or not outputs:
        raise ValueError(
            f"Model {model.name!r} has no graph to take input shapes from: pass x and y, one batch of data."
        )
    rng = np.random.default_rng(0)
    x = [_random(rng, _shape(tensor, batch_size), tensor.dtype) for tensor in inputs]
    y = [_target(tensor, batch_size, loss) for tensor, loss in zip(outputs, _losses(model.loss, graph))]
    return tf.nest.pack_sequence_as(graph.input, x), tf.nest.pack_sequence_as(graph.output, y)


def _shape(tensor: tf.Tensor, batch_size: int) -> tuple[int, ...]:
    shape = tuple(tensor.shape)[1:]
    if any(size is None for size in shape):
        raise ValueError(
            f"{tensor.name!r} has no fixed shape: {shape}. Give `keras.Input` all sizes, or pass x and y, one batch of "
            "data, where they are taken."
        )
    return (batch_size, *shape)


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: tf.DType) -> tf.Tensor:
    dtype = tf.as_dtype(dtype)
    if dtype == tf.string:
        raise ValueError(
            "There are no random strings for an input of strings. Pass x and y, one batch of data."
        )
    if dtype.is_floating:
        return tf.cast(in_counted_memory(rng.standard_normal(shape, dtype="float32")), dtype)
    return tf.cast(in_counted_memory(rng.integers(0, 2, shape)), dtype)


def _target(output: Any, batch_size: int, loss: Any) -> tf.Tensor:
    shape = _shape(output, batch_size)
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    if "sparse" in name.lower() or _takes_labels_alone(loss, output):
        return tf.zeros(shape[:-1], tf.int32)
    return tf.zeros(shape, tf.float32)


def _takes_labels_alone(loss: Any, output: Any) -> bool:
    """Whether a function, or an object, computes a loss of one sample's classes and none of values."""

    def takes(y: tf.Tensor) -> bool:
        try:
            loss(y, tf.zeros(shape, output.dtype))
        except Exception:  # whatever a user's function raises
            return False
        return True

    shape = _shape(output, 1)
    return callable(loss) and not takes(tf.zeros(shape)) and takes(tf.zeros(shape[:-1], tf.int32))


def _losses(loss: Any, graph: keras.Model) -> list[Any]:
    """The loss of each output of the graph, from `loss` as `compile` was given it."""
    if isinstance(loss, dict):
        names = sorted(graph.output) if isinstance(graph.output, dict) else graph.output_names
        loss = [loss.get(name) for name in names]
    return list(loss) if isinstance(loss, (list, tuple)) else [loss] * len(graph.outputs)
