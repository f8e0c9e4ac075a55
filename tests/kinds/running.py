"""Runs a kind of training, plain and compressed, from the same weights and batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from kind import STEPS, FromKeras, Kind
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.memory import saved


class Run(NamedTuple):
    """What a few steps did.

    Attributes:
      losses: Of each step.
      gradients: Of the first step.
      saved_bytes: That cross between the passes of a step, outside of branches and loops.
    """

    losses: np.ndarray
    gradients: list[np.ndarray]
    saved_bytes: int


def run(make: Callable[[], Kind], steps: int = STEPS, **compress) -> Run:
    """Trains a kind for a few steps; compressed where there are arguments for `compress_model`."""
    keras.backend.clear_session()  # the same names, and seeds of layers that have none
    keras.utils.set_random_seed(0)
    kind = make()
    if compress:
        for model in kind.models:
            ct.compress_model(model, **compress)
    if isinstance(getattr(kind.step, "__self__", None), FromKeras):
        results = [kind.step(batch) for batch in kind.batches[:steps]]
        x, *y = kind.batches[0]
        sizes = saved.saved_bytes(kind.models[0], tf.constant(x), *map(tf.constant, y))
        return Run(np.array([loss for loss, _ in results]), results[0][1], sizes)

    def traced(*batch):
        passes: list = []
        with _keras.on_gradients(passes.append):
            loss, gradients = kind.step(*batch)
        gradients = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        bytes_ = [tf.size(t, tf.int64) * t.dtype.size for t in saved.crossing_of(passes)]
        return loss, gradients, tf.add_n(bytes_ or [tf.constant(0, tf.int64)])

    step = tf.function(traced, autograph=False)
    results = [step(*map(tf.constant, batch)) for batch in kind.batches[:steps]]
    losses = np.array([float(loss) for loss, _, _ in results])
    return Run(losses, [g.numpy() for g in results[0][1]], int(results[0][2]))


def relative_difference(gradients, others) -> float:
    """|g - g'| / |g'| of all gradients together."""
    apart = sum(float(np.sum(np.square(a - b, dtype=np.float64))) for a, b in zip(gradients, others))
    norm = sum(float(np.sum(np.square(b, dtype=np.float64))) for b in others)
    return (apart / norm) ** 0.5
