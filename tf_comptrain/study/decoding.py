"""Codecs whose streams no kernel of this library reads: they are decoded before anything is made of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from tf_comptrain.codecs import DEFAULT_DECAY, LARGEST_BOUND, RANGE, SIGMA, SMALLEST_BOUND, Codec, State
from tf_comptrain.study.outside import Outside

_LARGEST_STEP = 10.0  # of the running sigma, see `ErrorBound`
_LEAST_ROWS = 4  # of which channels have scales of their own


class DecodingCodec(Codec):
    """A codec whose streams are decoded for every reader; ReLUs have a bit for each element beside them."""

    carries_mask = False
    under_xla = False

    def batch_norm_gradient(
        self, stream: Any, dy: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, inv_std: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        x_hat = tf.cast(self.decompress(stream, tf.shape(dy), dy.dtype, dy), tf.float32)
        x_norm = (x_hat - mean) * inv_std
        slope = tf.cast(dy, tf.float32)
        over = list(range(slope.shape.rank - 1))
        dbeta, dgamma = tf.reduce_sum(slope, over), tf.reduce_sum(slope * x_norm, over)
        count = tf.cast(tf.size(slope) // tf.size(dbeta), tf.float32)
        dx = gamma * inv_std * (slope - (dbeta + x_norm * dgamma) / count)
        return tuple(
            tf.identity_n([tf.cast(dx, dy.dtype), dgamma, dbeta])
        )  # of one operation, as the kernel's


class OutsideCodec(DecodingCodec):
    """Another compressor in training: on the executor of a CPU, by way of Python, so its time is no kernel's.

    Args:
      name: Of the codec.
      outside: The compressor.
      bits: Of a value, where it is of a fixed rate: bounds have no effect then.
    """

    def __init__(self, name: str, outside: Outside, bits: float | None = None):
        self.format = name
        self.is_lossless = outside.lossless
        self._outside = outside
        self._bits = bits

    def compress(
        self,
        x: tf.Tensor,
        state: tf.Tensor,
        relative_bound: float,
        mid_rise: bool,
        relative_to: str = SIGMA,
        row_scales: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        encode = partial(self._encode, relative_bound=relative_bound, relative_to=relative_to)
        values = tf.cast(x, tf.float32)
        stream, new_state = tf.numpy_function(encode, [values, state], (tf.uint8, tf.float32), stateful=False)
        stream.set_shape([None])
        new_state.set_shape([len(State._fields)])
        with tf.control_dependencies([stream]):
            return tf.identity(x), stream, new_state

    def decompress(self, stream: tf.Tensor, shape: tf.Tensor, dtype: tf.DType, gate: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([gate]):
            values = tf.numpy_function(self._decode, [stream, shape], tf.float32, stateful=False)
        return tf.cast(tf.reshape(values, shape), dtype)

    def _encode(
        self, x: np.ndarray, state: np.ndarray, relative_bound: float, relative_to: str
    ) -> tuple[np.ndarray, np.ndarray]:
        new_state = next_state(x, State(*map(float, state)), relative_bound, relative_to)
        quantity = new_state.bound_used if self._bits is None else self._bits
        stream = self._outside.encode(np.ascontiguousarray(x), quantity, 1)
        new_state = new_state._replace(stream_bytes=float(stream.size))
        return stream, np.array(new_state, np.float32)

    def _decode(self, stream: np.ndarray, shape: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(self._outside.decode(stream, tuple(map(int, shape)), 1), np.float32)


def next_state(x: np.ndarray, state: State, relative_bound: float, relative_to: str) -> State:
    """What a compress op makes of a tensor's state, but for the size of the stream; see `ErrorBound`.

    Args:
      x: float32, any shape.
      state: Before.
      relative_bound: Bound / running sigma or range, where the state sets no absolute bound.
      relative_to: "sigma" or "range".
    """
    rows = (
        x.reshape(-1, x.shape[-1]) if x.ndim > 1 and x.size >= _LEAST_ROWS * x.shape[-1] else x.reshape(-1, 1)
    )
    sigma, span = (
        float(np.sqrt(np.var(rows, axis=0, dtype=np.float64).mean())),
        float(np.ptp(x)) if x.size else 0.0,
    )
    running = state.running_sigma or sigma
    bound = state.bound_set or relative_bound * (span if relative_to == RANGE else running)
    bound = min(max(bound, SMALLEST_BOUND), LARGEST_BOUND)
    after = DEFAULT_DECAY * running + (1 - DEFAULT_DECAY) * min(sigma, _LARGEST_STEP * running)
    return State(
        bound_set=state.bound_set,
        bound_used=bound,
        running_sigma=after,
        nonzero_ratio=float(np.count_nonzero(x)) / max(x.size, 1),
        sigma=sigma,
        range=span,
        rms_bound=bound,
    )
