"""Codecs: how a tensor becomes a stream of bytes and comes back. They know nothing of layers or gradients."""

from tf_comptrain.codecs import gradients  # noqa: F401 (it registers)
from tf_comptrain.codecs.bound import LARGEST_BOUND, RANGE, SIGMA, SMALLEST_BOUND, ErrorBound, State
from tf_comptrain.codecs.codec import (
    CODECS,
    DEFAULT_DECAY,
    RATES,
    SUPPORTED_DTYPES,
    AutoCodec,
    Codec,
    FixedRateCodec,
    FixedStream,
    PlaneCodec,
    RansCodec,
    ZvcCodec,
    get,
)

__all__ = [
    "CODECS",
    "DEFAULT_DECAY",
    "LARGEST_BOUND",
    "RANGE",
    "RATES",
    "SIGMA",
    "SMALLEST_BOUND",
    "SUPPORTED_DTYPES",
    "AutoCodec",
    "Codec",
    "ErrorBound",
    "FixedRateCodec",
    "FixedStream",
    "PlaneCodec",
    "RansCodec",
    "State",
    "ZvcCodec",
    "get",
]
