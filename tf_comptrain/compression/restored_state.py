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


class SavedState:
    """Weights, slots of all optimizers, metrics, seeds and the codec's running values, in host memory.

    Of variables that are there now: `_keras.build_for_step` makes those of a step.
    """

    def __init__(self, model: keras.Model):
        self._variables = _keras.step_variables(model)
        if is_compressed(model):
            self._variables += instrumentation(model).codec_states()
        self._values = [v.numpy() for v in self._variables]

    def put_back(self) -> None:
        for variable, value in zip(self._variables, self._values):
            for part in _keras.parts_of(variable):
                _put_back(part, value)


@contextlib.contextmanager
def state_restored(model: keras.Model) -> Iterator[None]:
    """Puts a `SavedState` back at the end."""
    saved = SavedState(model)
    try:
        yield
    finally:
        saved.put_back()


def _put_back(variable: tf.Variable, value: np.ndarray) -> None:
    """In a buffer where the one was that the variable has now: the allocator may give others of twice the size."""
    assign = functools.partial(tf.raw_ops.AssignVariableOp, resource=variable.handle, validate_shape=False)
    with tf.device(variable.device):
        try:
            assign(value=tf.zeros([0], variable.dtype))
        finally:
            # A copy in the allocator's memory: TensorFlow may share NumPy's own.
            assign(value=tf.raw_ops.DeepCopy(x=value))
