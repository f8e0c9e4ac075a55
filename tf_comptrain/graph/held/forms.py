"""The codec that streams of a step have: dithered where that can be."""

from __future__ import annotations

from tf_comptrain import codecs
from tf_comptrain.codecs import Codec


def dithered(codec: Codec, mask: bool, xla: bool) -> Codec:
    """The codec with dither; without where a mask is read off restored values, and under XLA."""
    if mask and codec.mask_of_restored:
        return codec
    dithered = f"{codec.format}+dither"
    return codecs.get(dithered) if dithered in codecs.CODECS and not xla else codec
