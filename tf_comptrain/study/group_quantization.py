"""The baseline: fixed-width quantization per group in the manner of ActNN, written with TensorFlow's ops.

Each sample is cut, channel by channel, into groups of 256 values. A group holds its minimum and range in
bfloat16 and a code of `bits` bits per value, rounded up or down at random so that the mean is exact.

Reference:
  ActNN (Chen et al., ICML 2021). Its choice of different widths for different samples and layers is not
  here. Known weakness: no bound on the error of a value; one outlier coarsens its group of 256.
"""

from __future__ import annotations

import tensorflow as tf

from tf_comptrain.codecs import SIGMA, State
from tf_comptrain.study.decoding import DecodingCodec

GROUP = 256


class GroupQuantization(DecodingCodec):
    """`bits` per value (2, 4 or 8) and 4 bytes for each group of 256. Bounds have no effect."""

    def __init__(self, bits: int):
        self.bits = bits
        self.format = f"group{bits}"

    def predicted_bits(self, bound: float, density: float = 1.0) -> float:
        return self.bits + 32 / GROUP

    def compress(
        self,
        x: tf.Tensor,
        state: tf.Tensor,
        relative_bound: float,
        mid_rise: bool,
        relative_to: str = SIGMA,
        row_scales: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        groups = _to_groups(tf.cast(x, tf.float32))
        low = tf.reduce_min(groups, axis=1, keepdims=True)
        width = tf.reduce_max(groups, axis=1, keepdims=True) - low
        low, width = tf.cast(low, tf.bfloat16), tf.cast(width, tf.bfloat16)
        scale = tf.math.divide_no_nan(float(2**self.bits - 1), tf.cast(width, tf.float32))
        codes = (groups - tf.cast(low, tf.float32)) * scale + tf.random.uniform(tf.shape(groups))
        codes = tf.cast(tf.clip_by_value(tf.floor(codes), 0.0, 2.0**self.bits - 1), tf.uint8)
        per_byte = 8 // self.bits
        parts = tf.reshape(codes, [-1, per_byte, GROUP // per_byte])
        packed = parts[:, 0]
        for i in range(1, per_byte):
            packed |= tf.bitwise.left_shift(parts[:, i], tf.constant(i * self.bits, tf.uint8))
        ends = tf.bitcast(tf.concat([low, width], axis=1), tf.uint8)  # [groups, 2, 2]
        stream = tf.concat([packed, tf.reshape(ends, [-1, 4])], axis=1)
        new_state = State(stream_bytes=1.0)
        new_state = tf.constant(new_state) * tf.cast(tf.size(stream), tf.float32)
        with tf.control_dependencies([stream]):
            return tf.identity(x), stream, new_state

    def decompress(self, stream: tf.Tensor, shape: tf.Tensor, dtype: tf.DType, gate: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([gate]):
            stream = tf.identity(stream)
        packed, ends = stream[:, :-4], tf.reshape(stream[:, -4:], [-1, 2, 2])
        ends = tf.cast(tf.bitcast(ends, tf.bfloat16), tf.float32)
        mask = tf.constant(2**self.bits - 1, tf.uint8)
        parts = [
            tf.bitwise.right_shift(packed, tf.constant(i * self.bits, tf.uint8)) & mask
            for i in range(8 // self.bits)
        ]
        codes = tf.cast(tf.concat(parts, axis=1), tf.float32)
        values = codes * (ends[:, 1:] / (2**self.bits - 1)) + ends[:, :1]
        return tf.cast(_from_groups(values, shape), dtype)


def _to_groups(x: tf.Tensor) -> tf.Tensor:
    """[groups, GROUP]; a group never spans two samples, and only for small images two channels."""
    shape = tf.shape(x)
    x = tf.reshape(_channels_first(tf.reshape(x, [shape[0], -1, shape[-1]])), [shape[0], -1])
    padding = -tf.shape(x)[1] % GROUP
    # The last group is filled up with its own last value, which leaves its range as it is.
    x = tf.concat([x, tf.repeat(x[:, -1:], padding, axis=1)], axis=1)
    return tf.reshape(x, [-1, GROUP])


def _from_groups(groups: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    samples, channels = shape[0], shape[-1]
    values = tf.reshape(groups, [samples, -1])[:, : tf.reduce_prod(shape[1:])]
    return tf.reshape(_channels_first(tf.reshape(values, [samples, channels, -1])), shape)


def _channels_first(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [0, 2, 1])
