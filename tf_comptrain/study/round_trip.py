"""A tensor taken through a codec and back: what it costs, and what the errors are like."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_comptrain import codecs
from tf_comptrain.codecs import SIGMA, Codec, State
from tf_comptrain.memory.measure import timed_call
from tf_comptrain.study.decoding import next_state
from tf_comptrain.study.grid import CONTESTANTS, FIXED_RATE, LOSSLESS, Candidate

_REPEATS = 3


class RoundTrip(NamedTuple):
    """What came back.

    Attributes:
      values: float32, in the shape of the tensor.
      state: As a compress op leaves it: the bound used, the share of non-zeros, the bytes of the stream, ...
      row: Numbers for the table, see docs/study.md.
    """

    values: np.ndarray
    state: State
    row: dict[str, Any]


def round_trip(setting: Candidate, codec: Codec, x: np.ndarray, mask: bool, value_bytes: int) -> RoundTrip:
    """Encodes and decodes a tensor.

    Args:
      setting: How.
      codec: The setting's, as the step would have it.
      x: The tensor, float32.
      mask: It is a ReLU's output, of which it must be known what is zero: codecs that cannot say that take a bit for
        each element more.
      value_bytes: Of the tensor's values, as they are.
    """
    state = _state(setting, x)
    tensor, start = tf.constant(x), tf.constant(state, tf.float32)
    shape, gate, carried = tf.shape(tensor), tf.constant(0.0), mask and codec.carries_mask
    by_channel = setting.mode == SIGMA and setting.codec in codecs.CODECS
    relative_to = SIGMA if by_channel else codecs.NOTHING
    stream, encode_s = timed_call(
        lambda: codec.compress(tensor, start, 1e-6, carried, relative_to)[1:], _REPEATS
    )
    restored, decode_s = timed_call(
        lambda: codec.decompress(stream[0], shape, tf.float32, gate).numpy(), _REPEATS
    )
    restored = restored.reshape(x.shape)
    held = float(stream[1][State._fields.index("stream_bytes")]) or float(tf.size(stream[0]))
    held += math.ceil(x.size / 8) if mask and not codec.carries_mask else 0
    error = restored.astype(np.float64) - x
    rms = float(np.sqrt(np.mean(np.square(error)))) if x.size else 0.0
    is_bounded = CONTESTANTS[setting.codec].is_bounded and setting.mode != FIXED_RATE
    bound = None if setting.mode == FIXED_RATE else 0.0 if setting.mode == LOSSLESS else state.bound_used
    row = {
        "bound_used": bound,
        "value_bytes": value_bytes,
        "held_bytes": int(held),
        "ratio": value_bytes / max(held, 1),
        "max_error": float(np.abs(error).max(initial=0)),
        "rms_error": rms,
        "violations": None if bound is None else _violations(error, stream[0], bound, by_channel),
        "bias": float(error.mean()) / rms if rms else 0.0,
        "autocorrelation": _autocorrelation(error),
        "zeros_kept": _zeros_kept(x, restored),
        "encode_gb_s": x.nbytes / 1e9 / encode_s,
        "decode_gb_s": x.nbytes / 1e9 / decode_s,
    }
    # The law takes errors to be uniform within the bound of the non-zero elements; others have one of that size.
    effective = rms * math.sqrt(3 / max(state.nonzero_ratio, 1e-9))
    if is_bounded and bound is not None:
        effective = float(stream[1][State._fields.index("rms_bound")]) if by_channel else bound
    return RoundTrip(restored, state._replace(rms_bound=effective, stream_bytes=held), row)


def _violations(error: np.ndarray, stream: tf.Tensor, bound: float, by_channel: bool) -> int:
    bounds = codecs.channel_bounds(stream.numpy(), bound) if by_channel else bound
    return int(np.count_nonzero(np.abs(error) > bounds))


def _state(setting: Candidate, x: np.ndarray) -> State:
    """Of a tensor's first step, with the bound as an absolute one, as float32 has it."""
    bound = setting.error_bound()
    if bound is None:
        return next_state(x, State(bound_set=1.0), 0.0, "sigma")
    start = State(bound_set=0.0 if bound.relative else bound.value)
    used = np.float32(next_state(x, start, bound.value, bound.relative_to).bound_used)
    return next_state(x, State(bound_set=float(used)), 0.0, "sigma")


def _autocorrelation(error: np.ndarray) -> float:
    """Of the errors of neighbours: along the dimension before the channels, of a matrix along its rows."""
    along = error if error.ndim == 2 else np.moveaxis(error, -2, -1) if error.ndim > 2 else error[None]
    along = along - along.mean()
    power = float(np.square(along).mean()) if along.size else 0.0
    pairs = along[..., 1:] * along[..., :-1]
    return float(pairs.mean()) / power if power and pairs.size else 0.0


def _zeros_kept(x: np.ndarray, restored: np.ndarray) -> float | None:
    zeros = x == 0
    return float(np.mean(restored[zeros] == 0)) if zeros.any() else None
