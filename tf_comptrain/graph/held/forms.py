"""What streams are like on each engine: dithered ones of any length, or those of a fixed rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tf_comptrain import codecs
from tf_comptrain.codecs import Codec
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.tensors import base_of


class StreamForm(NamedTuple):
    """What an engine makes of a wish for a stream.

    Attributes:
      xla: Whether XLA compiles the step.
      largest_gain: Of a constant before a nonlinear function: where it is larger no default bound is fine enough.
      codec: (codec, mask) -> what encodes a tensor that is to have this codec.
      is_mid_rise: (tensor, mask) -> whether no value that is not zero becomes zero.
    """

    xla: bool
    largest_gain: float
    codec: Callable[[Codec, bool], Codec]
    is_mid_rise: Callable[[tf.Tensor, bool], bool]


def dithered(codec: Codec, mask: bool, xla: bool) -> Codec:
    """The codec with dither; without where a mask is read off restored values."""
    if mask and codec.mask_of_restored:
        return codec
    dithered = f"{codec.format}+dither"
    return codecs.get(dithered) if dithered in codecs.CODECS and not xla else codec


EXECUTOR = StreamForm(
    xla=False,
    largest_gain=math.inf,
    codec=lambda codec, mask: dithered(codec, mask, xla=False),
    is_mid_rise=lambda tensor, mask: mask,
)
XLA = StreamForm(
    xla=True,
    largest_gain=4.0,  # XLA's codec has two bits more than the default bound takes
    codec=lambda codec, mask: dithered(codec, mask, xla=True),
    # Without negative values a fixed rate has finer steps, and zeros come back as they were.
    is_mid_rise=lambda tensor, mask: mask or about(base_of(tensor).op.type).least == 0,
)
