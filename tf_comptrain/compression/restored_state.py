"""What a training step changes, put back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import numpy as np
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
            for part in _keras.parts_of(variable):
                _put_back(part, value)


def _put_back(variable: tf.Variable, value: np.ndarray) -> None:
    """In a buffer where the one was that the variable has now: the allocator may give others of twice the size."""
    assign = functools.partial(tf.raw_ops.AssignVariableOp, resource=variable.handle, validate_shape=False)
    with tf.device(variable.device):
        try:
            assign(value=tf.zeros([0], variable.dtype))
        finally:
            # A copy in the allocator's memory: TensorFlow may share NumPy's own.
            assign(value=tf.raw_ops.DeepCopy(x=value))
