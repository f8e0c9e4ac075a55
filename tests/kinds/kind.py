"""What a kind of model brings: its models, one training step of its own, and its batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

layers = keras.layers


class Kind(NamedTuple):
    """A training as a public example would have it, ready to run.

    Attributes:
      models: Those that are compressed.
      step: From one batch to the loss and a list of gradients, with the updates made.
      batches: One for each step, tuples of arrays. All that is random is in them.
    """

    models: Sequence[keras.Model]
    step: Callable[..., tuple[tf.Tensor, Sequence[Any]]]
    batches: Sequence[tuple]


STEPS = 5


def batches(make: Callable[[np.random.Generator], tuple]) -> list[tuple]:
    """A batch for each step, of float32 and int32 arrays."""

    def narrow(array):
        array = np.asarray(array)
        return array.astype("float32" if array.dtype.kind == "f" else "int32")

    rng = np.random.default_rng(0)
    return [tuple(narrow(array) for array in make(rng)) for _ in range(STEPS)]


def sequential(*parts, shape) -> keras.Sequential:
    return keras.Sequential([keras.Input(shape), *parts])


def adam(variables, rate=1e-3) -> keras.optimizers.Optimizer:
    """With its slots made."""
    optimizer = keras.optimizers.Adam(rate)
    optimizer.build(variables)
    return optimizer


def supervised(models, loss_of, rate=1e-3):
    """The step of a loop that has one loss and one optimizer.

    Args:
      models: Whose weights are trained.
      loss_of: From a batch to its loss.
      rate: Learning rate.
    """
    variables = [v for model in models for v in model.trainable_variables]
    optimizer = adam(variables, rate)

    def step(*batch):
        with tf.GradientTape() as tape:
            loss = loss_of(*batch)
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        return loss, gradients

    return step


def cross_entropy(labels, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


class FromKeras:
    """The step of `fit` as a loop may call it: weights move by SGD, so their change is the gradient."""

    def __init__(self, model: keras.Model):
        self.model = model

    def run(self, batch) -> tuple[float, list[np.ndarray]]:
        before = [v.numpy() for v in self.model.trainable_variables]
        rate = float(self.model.optimizer.learning_rate)
        logs = self.model.train_on_batch(*batch, return_dict=True)
        after = [v.numpy() for v in self.model.trainable_variables]
        return float(logs["loss"]), [(b - a) / rate for b, a in zip(before, after)]
