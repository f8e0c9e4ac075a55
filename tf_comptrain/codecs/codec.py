"""Codec objects: each wraps the ops of one stream format."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import native
from tf_comptrain.codecs.bound import SIGMA, ErrorBound

SUPPORTED_DTYPES = (tf.float32, tf.bfloat16, tf.float16)
DEFAULT_DECAY = 0.9
_DIRECTORY_BITS = 0.13  # of a stream's directory and tables, a value

_NO_STATE: tuple[float, ...] = ()  # streams of the executor have a header


class Codec:
    """One stream format, by the ops that write and read it.

    Attributes:
      format: Its name, as the ops know it.
      dither: Whether values are rounded after a pseudo-random offset that decoding takes away again: same
        bound, but the error has a mean of 0 and does not depend on the value.
      carries_mask: `mask_gradient` works on its (mid-rise) streams.
      mask_of_restored: `mask_gradient` decodes, so that the mask x_hat > 0 of a restored ReLU output is worth
        keeping. With dither it is not the same: values restored from near zero may be negative.
      is_lossless: Every bit comes back, whatever the bound.
      under_xla: There is a lowering of the ops for its streams: `FixedRateCodec` stands in.
      is_entropy_coded: Its streams take fewer bits where values are likely, which no fixed rate does.
      width: Sigmas that the codes of a value tell apart, see `predicted_bits`.
    """

    format: str
    dither = False
    carries_mask = True
    mask_of_restored = False
    is_lossless = False
    under_xla = True
    is_entropy_coded = False
    width = 5.6

    def predicted_bits(self, bound: float, density: float = 1.0) -> float:
        """What a value takes in a stream, predicted.

        A value is one of n = width / (2 bound) + 1 steps, or + 3 with dither, and takes log2(n) bits. Zeros take
        one bit each, and the other values one more, where that is less.

        Args:
          bound: Error bound / sigma.
          density: Share of the values that are not zero.

        Returns:
          Bits; what the stream has of its channels and of itself is not in it.
        """
        bits = math.log2(self.width / (2 * bound) + (3 if self.dither else 1)) + _DIRECTORY_BITS
        return min(bits, 1 + density * bits)

    @property
    def name(self) -> str:
        """As `codec=` knows it."""
        return f"{self.format}+dither" if self.dither else self.format

    def compress(
        self,
        x: tf.Tensor,
        state: tf.Tensor,
        relative_bound: float,
        mid_rise: bool,
        relative_to: str = SIGMA,
        row_scales: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Encodes x.

        Args:
          x: float32, bfloat16 or float16 tensor of any shape, channels last.
          state: float32 [len(State)], in the order of `State`.
          relative_bound: Bound / running sigma or range, where the state sets no absolute bound.
          mid_rise: Keep the mask x != 0 exactly, for `mask_gradient`.
          relative_to: "sigma", "range" or "nothing": `ErrorBound.reference`.
          row_scales: Rows, all channels of one place, that are some four times longer or shorter than the others
            have a bound in proportion. Not of what `batch_norm_gradient` reads.

        Returns:
          x (to be read by its consumers), the stream (uint8 [bytes]) and the new state.
        """
        return native.ops().comptrain_compress(
            x,
            state,
            codec=self.format,
            relative_bound=relative_bound,
            relative_to=relative_to,
            decay=DEFAULT_DECAY,
            mid_rise=mid_rise,
            dither=self.dither,
            row_scales=row_scales,
        )

    def decompress(self, stream: tf.Tensor, shape: tf.Tensor, dtype: tf.DType, gate: tf.Tensor) -> tf.Tensor:
        """Decodes a stream once `gate`, the incoming gradient, is there; gate is not read."""
        return native.ops().comptrain_decompress(stream, shape, gate, _NO_STATE, T=dtype, codec=self.format)

    def mask_gradient(self, stream: tf.Tensor, *dy: tf.Tensor) -> tf.Tensor:
        """dy, under XLA the sum of some, where the stored value is not zero, else 0; the stream must be mid-rise."""
        return native.ops().comptrain_stream_mask_grad(stream, dy, codec=self.format)

    def batch_norm_gradient(
        self, stream: tf.Tensor, dy: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, inv_std: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Gradient of batch normalization from the stream of its input.

        With x_norm = (x_hat - mean) * inv_std and m elements a channel: dbeta = sum dy,
        dgamma = sum dy * x_norm, dx = gamma * inv_std * (dy - dbeta / m - x_norm * dgamma / m).
        On the CPU plane's streams are decoded piece by piece, and x_hat is never a tensor.

        Args:
          stream: Of the input; made by `compress`.
          dy: Incoming gradient, in the input's shape and dtype, channels last.
          gamma: float32 [channels].
          mean: float32 [channels], of the batch.
          inv_std: float32 [channels], 1 / sqrt(population variance + epsilon).

        Returns:
          dx (in the memory of dy where nothing else reads it), dgamma and dbeta.
        """
        return native.ops().comptrain_batch_norm_grad(
            stream, dy, gamma, mean, inv_std, _NO_STATE, codec=self.format
        )


class PlaneCodec(Codec):
    """plane: error-bounded codes of 32 x 32 tiles in as many bits as they need, near memory speed.

    See docs/codec-format.md. A tile holds what its values span: 6.4 sigma of noise, less of activations that neighbours
    resemble.

    Args:
      dither: See `Codec`. Worth its time (a third of the speed) at bounds above about half a standard
        deviation, where plain rounding follows the data.
    """

    format = "plane"

    def __init__(self, dither: bool = False):
        self.dither = dither


class RansCodec(Codec):
    """rans: the same error bound as plane, predicted from neighbouring pixels and entropy coded.

    The highest ratio; two to four times slower than `PlaneCodec`. See docs/codec-format.md.

    Args:
      dither: See `Codec`.
    """

    format = "rans"
    is_entropy_coded = True
    width = 1.7  # of what is left after prediction: its entropy, measured on activations

    def __init__(self, dither: bool = False):
        self.dither = dither
        self.mask_of_restored = not dither


class FixedStream(NamedTuple):
    """A stream of the fixed-rate codec, with what its readers must be told: it has no header.

    Attributes:
      codes: uint8, of a static shape.
      state: The new state of the compress op that wrote it.
      mid_rise: The codes keep the mask x != 0.
      row_scales: As `compress` was given it.
    """

    codes: tf.Tensor
    state: tf.Tensor
    mid_rise: bool
    row_scales: bool = False


class FixedRateCodec(Codec):
    """fixed: what the compress op does under XLA, which needs static shapes.

    Every value takes the same number of bits, and each group of 32 values has a scale: the bound of a group whose
    values are too large for their codes is as much larger as they need. The state says how many groups that is, and
    the root mean square of all their bounds. A group is 32 values along one dimension, as far apart as that allows.

    Args:
      bits: A value's: one of `RATES`.
      group_statistics: Whether the new state has `widened` and `rms_bound` of this tensor, or those of the old state.
    """

    format = "plane"

    def __init__(self, bits: int, group_statistics: bool = True):
        self.bits = bits
        self.group_statistics = group_statistics

    @property
    def stream_bits(self) -> float:
        """Of a stream, a value: with its share of the byte of its group's scale."""
        return self.bits + 8 / _GROUP

    def compress(
        self,
        x: tf.Tensor,
        state: tf.Tensor,
        relative_bound: float,
        mid_rise: bool,
        relative_to: str = SIGMA,
        row_scales: bool = False,
    ) -> Any:
        """As Codec.compress; the second result is a `FixedStream`."""
        through, codes, new_state = native.ops().comptrain_compress(
            x,
            state,
            relative_bound=relative_bound,
            relative_to=relative_to,
            decay=DEFAULT_DECAY,
            mid_rise=mid_rise,
            bits=self.bits,
            group_statistics=self.group_statistics,
            row_scales=row_scales,
        )
        return through, FixedStream(codes, new_state, mid_rise, row_scales), new_state

    def decompress(self, stream: Any, shape: tf.Tensor, dtype: tf.DType, gate: tf.Tensor) -> Any:
        return native.ops().comptrain_decompress(
            stream.codes,
            shape,
            gate,
            stream.state,
            T=dtype,
            mid_rise=stream.mid_rise,
            bits=self.bits,
            row_scales=stream.row_scales,
        )

    def mask_gradient(self, stream: Any, *dy: tf.Tensor) -> Any:
        return native.ops().comptrain_stream_mask_grad(
            stream.codes, dy, bits=self.bits, row_scales=stream.row_scales
        )

    def batch_norm_gradient(
        self, stream: Any, dy: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, inv_std: tf.Tensor
    ) -> Any:
        return native.ops().comptrain_batch_norm_grad(
            stream.codes, dy, gamma, mean, inv_std, stream.state, mid_rise=stream.mid_rise, bits=self.bits
        )

    @staticmethod
    def rate_for(bound: float, mid_rise: bool) -> int:
        """The fewest bits whose codes hold a bound; 8 where none does.

        Args:
          bound: Of a group, over its largest magnitude.
          mid_rise: Codes are unsigned then.
        """
        return next((b for b in RATES if FixedRateCodec.holds(bound, b, mid_rise)), RATES[-1])

    @staticmethod
    def holds(bound: float, bits: int, mid_rise: bool) -> bool:
        """Whether codes of so many bits hold a bound; see `rate_for`."""
        return bound * (2**bits - 1) * (2 if mid_rise else 1) >= 1


RATES = range(2, 9)  # bits of a value
_GROUP = 32  # values that share a scale
# Values: shorter rows differ by chance. Under XLA each takes a byte, of whatever length.
_LONG_ROW, _LONG_ROW_UNDER_XLA = 16, 64


class ZvcCodec(Codec):
    """zvc: lossless zero-value compression, a bit for each value and the non-zero ones.

    It comes from cDMA (Rhu et al., HPCA 2018) and gains what is zero: 32 / (1 + 32 d) at a density d of
    non-zeros in float32, nothing on dense tensors. Bounds have no effect; every bit comes back.
    """

    format = "zvc"
    is_lossless = True
    under_xla = False  # lossless streams have no static size

    def predicted_bits(self, bound: float, density: float = 1.0) -> float:
        return 1 + 32 * density


class AutoCodec(Codec):
    """One of the others for each tensor, by encoding a sample of it (at most a sixteenth) with all.

    zvc where it is no larger than plane: as fast, and lossless. Else rans where it is a fifth
    smaller than plane, as on most dense tensors. Else, and below 2^16 elements, plane. Streams say
    what they are; the choice may differ from step to step.
    """

    format = "auto"
    is_entropy_coded = True
    mask_of_restored = True  # where it chose rans
    width = RansCodec.width


CODECS = {
    codec.name: codec
    for codec in (
        PlaneCodec(),
        RansCodec(),
        ZvcCodec(),
        AutoCodec(),
        PlaneCodec(dither=True),
        RansCodec(dither=True),
    )
}


def get(codec: str | Codec) -> Codec:
    """The codec of a name.

    Raises:
      ValueError: No such codec, or no name.
    """
    if isinstance(codec, Codec):
        return codec
    if isinstance(codec, str) and codec in CODECS:
        return CODECS[codec]
    raise ValueError(
        f"`codec` must be one of {', '.join(map(repr, CODECS))} or a Codec. Received: {codec!r}."
    )


def dithered(codec: Codec, mask: bool, xla: bool) -> Codec:
    """The codec with dither; without where a mask is read off restored values, and under XLA."""
    name = f"{codec.format}+dither"
    if (mask and codec.mask_of_restored) or xla or name not in CODECS:
        return codec
    return get(name)


def scales_rows(x: tf.Tensor, codec: Codec, bound: ErrorBound, xla: bool = False) -> bool:
    """Whether rows of a tensor are long enough for scales of their own, and its bound is not the same for all."""
    if codec.is_lossless or bound.reference != SIGMA or not x.shape.rank:
        return False
    return (x.shape[-1] or 0) >= (_LONG_ROW_UNDER_XLA if xla else _LONG_ROW)
