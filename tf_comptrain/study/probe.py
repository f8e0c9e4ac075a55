"""A traced step of which the held tensors can be looked at, and put back with errors of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.codecs import SIGMA, State
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.compression.law_check import LawCheck, law_checks, numbers_of
from tf_comptrain.compression.model import compress_model
from tf_comptrain.compression.restored_state import state_restored
from tf_comptrain.storage import name_of
from tf_comptrain.study.decoding import DecodingCodec
from tf_comptrain.study.round_trip import RoundTrip


class ProbedTensor(NamedTuple):
    """A tensor that the step holds.

    Attributes:
      name: Of the operation that makes it.
      kind: What reads it, see `storage.DEFAULT_BOUNDS`.
      values: As float32.
      mask: It is a ReLU's output, of which the step needs to know what is zero.
      value_bytes: Of its values, as they are.
    """

    name: str
    kind: str
    values: np.ndarray
    mask: bool
    value_bytes: int


class Gradients(NamedTuple):
    """What one run of the step finds.

    Attributes:
      values: The gradients of all weights, float64.
      checks: The error-bound law and what it is held against, of each gradient that it speaks of.
    """

    values: tuple[np.ndarray, ...]
    checks: list[LawCheck]


class Probe:
    """A model's training step, traced once, with the tensors that it holds in Python.

    Args:
      model: A compiled model that is not compressed; it is, after this.
      x: One batch of inputs.
      y: Its targets; None where the model's `train_step` takes none.
    """

    def __init__(self, model: keras.Model, x: Any, y: Any):
        self._model = model
        self._codec = _ProbeCodec()
        compress_model(model, codec=self._codec)
        held: Any = instrumentation(model).held
        x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
        _keras.build_for_step(model, x, y)
        passes: list[_keras.BackwardPass] = []

        def results() -> Any:
            graph = tf.compat.v1.get_default_graph()  # a step that makes variables is traced twice
            found = [g for each in passes if each.graph is graph for g in each.gradients if g is not None]
            return [tf.convert_to_tensor(g) for g in found], numbers_of(errors)

        # After compress_model, whose gradients these are to be.
        with held.checked() as errors, _keras.on_gradients(passes.append):
            self._step = _keras.trace_train_step(model, x, y, results)
        self._errors = errors
        self._sites = held.sites

    def look(self, weights: Sequence[np.ndarray]) -> tuple[list[ProbedTensor], Gradients]:
        """The tensors of a step from these weights, in the order of their names, and its gradients."""
        self._model.set_weights(weights)
        self._codec.seen.clear()
        gradients = self.run({})
        tensors = [
            ProbedTensor(name, self._sites[name].kind, values, mask, size)
            for name, (values, mask, size) in sorted(self._codec.seen.items())
        ]
        return tensors, gradients

    def run(self, restored: Mapping[str, RoundTrip]) -> Gradients:
        """A step from the weights of the last look, with these tensors as they came back; others are exact."""
        self._codec.restored = restored
        with state_restored(self._model):
            values, numbers = self._step()
        return Gradients(
            tuple(np.asarray(value, np.float64) for value in values), law_checks(self._errors, numbers)
        )


class _Token(NamedTuple):
    """In place of a stream: which tensor it is, and that it has been made."""

    name: str
    made: tf.Tensor


class _ProbeCodec(DecodingCodec):
    """Keeps each tensor in Python, and gives back what `restored` has for it, or the tensor itself.

    Attributes:
      seen: By name: values, whether a mask is needed, plain bytes.
      restored: By name: what a tensor is to come back as.
    """

    format = "probe"
    carries_mask = True

    def __init__(self) -> None:
        self.seen: dict[str, tuple[np.ndarray, bool, int]] = {}
        self.restored: Mapping[str, RoundTrip] = {}

    def compress(
        self,
        x: tf.Tensor,
        state: tf.Tensor,
        relative_bound: float,
        mid_rise: bool,
        relative_to: str = SIGMA,
        row_scales: bool = False,
    ) -> Any:
        name = name_of(x)
        see = partial(self._see, name=name, mask=mid_rise, value_bytes=x.dtype.size)
        made, new_state = tf.numpy_function(
            see, [tf.cast(x, tf.float32)], (tf.uint8, tf.float32), stateful=False
        )
        made.set_shape([])
        new_state.set_shape([len(State._fields)])
        with tf.control_dependencies([made]):
            return tf.identity(x), _Token(name, made), new_state

    def decompress(self, stream: Any, shape: tf.Tensor, dtype: tf.DType, gate: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([gate]):
            values = tf.numpy_function(
                partial(self._restore, name=stream.name), [stream.made], tf.float32, stateful=False
            )
        return tf.cast(tf.reshape(values, shape), dtype)

    def mask_gradient(self, stream: Any, dy: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([dy]):
            mask = tf.numpy_function(
                partial(self._mask, name=stream.name), [stream.made], tf.bool, stateful=False
            )
        return tf.where(tf.reshape(mask, tf.shape(dy)), dy, tf.zeros_like(dy))

    def _see(self, x: np.ndarray, name: str, mask: bool, value_bytes: int) -> tuple[np.ndarray, np.ndarray]:
        self.seen[name] = x.copy(), mask, value_bytes * x.size
        found = self.restored.get(name)
        state = State(sigma=float(x.std())) if found is None else found.state
        return np.uint8(0), np.array(state, np.float32)  # type: ignore[return-value]

    def _restore(self, unused_made: np.ndarray, name: str) -> np.ndarray:
        found = self.restored.get(name)
        return self.seen[name][0] if found is None else found.values

    def _mask(self, unused_made: np.ndarray, name: str) -> np.ndarray:
        return self.seen[name][0] != 0
