"""Tensors that are held as streams between the forward and the backward pass.

`hold` stores a tensor compressed and returns it passed through, with a handle that gives it back
when gated by the incoming gradient: the first two of the three fences in docs/design.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_comptrain import native
from tf_comptrain.codecs import SUPPORTED_DTYPES, Codec
from tf_comptrain.storage.offload import OFFLOAD, Offloaded
from tf_comptrain.storage.site import Site

# The ways to hold a tensor.
KEEP = "keep"  # as it is, by plain Keras
COMPRESS = "compress"  # error-bounded stream
BITMASK = "bitmask"  # one bit per element, or the position in a pooling window: exact
REBUILD = "rebuild"  # what a batch normalization makes may be rebuilt from the stream of its input
TILE = "tile"  # by tiles of rows, each made and used up before the next: it never exists whole
FUSED = "fused"  # as it is, by operations that this package prefers

# A stream's header and directory outweigh what a smaller tensor could save.
MIN_ELEMENTS_PER_SAMPLE = 64
_LARGE = 1 << 14  # elements of a whole batch: of many samples that are small
# Positions of a pooling window; XLA's lowering compares every one.
_MOST_POSITIONS, _MOST_UNDER_XLA = 1 << 16, 64


class Held:
    """A tensor held as a stream, in memory or in a file.

    Args:
      site: Where it is held.
      codec: Restores it.
      stream: Of `x`.
      x: The tensor.
      mid_rise: The stream has the mask of a ReLU's output.
      like: The tensor, where `x` is a view of it.

    Attributes:
      shape: Of the tensor, as it is found while the step runs.
    """

    def __init__(
        self,
        site: Site,
        codec: Codec,
        stream: Any,
        x: tf.Tensor,
        mid_rise: bool,
        like: tf.Tensor | None = None,
    ):
        self.site = site
        self.codec = codec
        self.stream = stream
        self.mid_rise = mid_rise
        like = x if like is None else like
        self._static_shape = like.shape
        self.shape = tf.shape(like)
        self._encoded_shape = self.shape if like is x else tf.shape(x)
        self._dtype = x.dtype
        # Of a ReLU's output, by the graph it was restored in (None: eagerly).
        self._bits: dict[tf.Graph | None, tf.Tensor] = {}

    @property
    def storage(self) -> str:
        """ "compress" or "offload"."""
        return OFFLOAD if isinstance(self.stream, Offloaded) else COMPRESS

    @property
    def is_exact(self) -> bool:
        """Whether every bit comes back."""
        return self.codec.is_lossless

    def restore(self, gate: tf.Tensor) -> tf.Tensor:
        """x_hat, decoded once `gate` (the incoming gradient) is there."""
        x_hat = self.codec.decompress(self._stream_at(gate), self._encoded_shape, self._dtype, gate)
        if self._encoded_shape is not self.shape:
            x_hat = tf.reshape(x_hat, self.shape)
        if self.mid_rise and self.codec.mask_of_restored and _graph() not in self._bits:
            # The ReLU's gradient follows: it need not decode again.
            x_hat, self._bits[_graph()] = native.ops().comptrain_bitmask(x_hat)
        x_hat.set_shape(self._static_shape)
        return x_hat

    def mask_gradient(self, *dy: tf.Tensor) -> tf.Tensor:
        """dy, under XLA the sum of some, where x != 0, else 0; x is the output of a ReLU."""
        bits = self._bits.get(_graph())
        if bits is not None:
            return native.ops().comptrain_bitmask_grad(bits, *dy, on=1.0, off=0.0)
        return self.codec.mask_gradient(self._stream_at(dy[0]), *dy)

    def batch_norm_gradient(
        self, dy: tf.Tensor, gamma: tf.Tensor, mean: tf.Tensor, inv_std: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """dx, dgamma and dbeta where x is normalized; x_hat is never a tensor. dy is the gate."""
        return self.codec.batch_norm_gradient(self._stream_at(dy), dy, gamma, mean, inv_std)

    def _stream_at(self, gate: tf.Tensor) -> Any:
        return self.stream.fetch(gate) if isinstance(self.stream, Offloaded) else self.stream


def _graph() -> tf.Graph | None:
    """The graph being traced; None in eager execution."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def worth_holding(x: tf.Tensor) -> bool:
    """Whether a tensor can be compressed at all and is large enough to gain from it."""
    if not has_codec(x) or x.shape.rank is None or x.shape.rank < 2:
        return False
    per_sample = 1
    for size in x.shape[1:]:
        per_sample *= size if size is not None else MIN_ELEMENTS_PER_SAMPLE
    return is_large(per_sample, x.shape.num_elements())


def has_codec(x: tf.Tensor) -> bool:
    """Whether there are codecs, and operations that keep bits, for a tensor's type."""
    return x.dtype in SUPPORTED_DTYPES


def may_hold_positions(window: Sequence[int], x: tf.Tensor, xla: bool) -> bool:
    """Whether the operations that keep the positions of maxima take such a window of a tensor; under XLA or not."""
    return math.prod(window) <= (_MOST_UNDER_XLA if xla else _MOST_POSITIONS) and has_codec(x)


def is_large(of_sample: int, of_all: int | None) -> bool:
    """Whether so many elements gain from being held in another form; `of_all` is None where the batch is not known."""
    return of_sample >= MIN_ELEMENTS_PER_SAMPLE or (of_all or 0) >= _LARGE


def hold(x: tf.Tensor, site: Site, xla: bool) -> tuple[tf.Tensor, Held]:
    """Stores x as a stream.

    Args:
      x: The tensor; see `worth_holding`.
      site: Where it is held.
      xla: Whether XLA compiles the graph being built.

    Returns:
      x passed through (read this one), and the handle that restores it.
    """
    coder = site.coder(mid_rise=False, xla=xla)
    through, stream, state = coder.compress(
        x, site.state, site.relative_bound, False, site.bound.reference, site.scales_rows(x, xla)
    )
    site.state.assign(state)
    return through, Held(site, coder, stream, x, False)
