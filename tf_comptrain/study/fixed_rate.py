"""What steps under XLA hold, as functions from an array to bytes and back: a step of the executor can hold it then."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_comptrain.codecs import FixedRateCodec, FixedStream, State
from tf_comptrain.study.outside import Outside

_TIGHT = 1e-6  # of sigma: the bits alone decide how exact a value is
_STATE_BYTES = 4 * len(State._fields)


def fixed_rate() -> Outside:
    """`FixedRateCodec`, compiled by XLA; the bits and the state that its decoder needs stand before the codes."""
    return Outside(_encode, _decode, is_bounded=False)


def _encode(x: np.ndarray, bits: float, unused_threads: int) -> np.ndarray:
    codes, state = _encoder(int(bits))(tf.constant(x))
    return np.concatenate([[np.uint8(bits)], state.numpy().view(np.uint8), codes.numpy()])


def _decode(stream: np.ndarray, shape: tuple[int, ...], unused_threads: int) -> np.ndarray:
    bits, state, codes = np.split(stream, [1, 1 + _STATE_BYTES])
    return _decoder(int(bits[0]), shape)(
        tf.constant(codes), tf.constant(state.copy().view(np.float32))
    ).numpy()


@functools.cache
def _encoder(bits: int) -> Callable:
    @tf.function(jit_compile=True, autograph=False)
    def encode(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        start = tf.constant(State(), tf.float32)
        _, stream, state = FixedRateCodec(bits).compress(x, start, _TIGHT, False)
        return stream.codes, state

    return encode


@functools.cache
def _decoder(bits: int, shape: tuple[int, ...]) -> Callable:
    @tf.function(jit_compile=True, autograph=False)
    def decode(codes: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
        stream = FixedStream(codes, state, False)
        return FixedRateCodec(bits).decompress(stream, tf.constant(shape), tf.float32, tf.zeros([]))

    return decode
