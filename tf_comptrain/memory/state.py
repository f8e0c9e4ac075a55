"""What a training step changes, put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import instrumentation, is_compressed


@contextlib.contextmanager
def state_restored(model: keras.Model) -> Iterator[None]:
    """Puts weights, slots of all optimizers, metrics, seeds and the codec's running values back, from host memory.

    Of variables that are there at the beginning: `_keras.build_for_step` makes those of a step.
    """
    variables = _keras.step_variables(model)
    if is_compressed(model):
        variables += instrumentation(model).codec_states()
    values = [v.numpy() for v in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, values):
            variable.assign(
                tf.raw_ops.DeepCopy(x=value)
            )  # a buffer of the allocator's, and not NumPy's, which nothing counts
