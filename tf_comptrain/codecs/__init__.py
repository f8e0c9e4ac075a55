# ruff: noqa: F401 (constants are for the other folders, and the gradients register)
"""Codecs: how a tensor becomes a stream of bytes and comes back. They know nothing of layers or gradients."""

from tf_comptrain.codecs import gradients
from tf_comptrain.codecs.bound import (
    LARGEST_BOUND,
    NOTHING,
    RANGE,
    SIGMA,
    SMALLEST_BOUND,
    ErrorBound,
    State,
    channel_bounds,
)
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
    dithered,
    get,
    scales_rows,
)

__all__ = [
    "CODECS",
    "AutoCodec",
    "Codec",
    "ErrorBound",
    "FixedRateCodec",
    "PlaneCodec",
    "RansCodec",
    "State",
    "ZvcCodec",
    "get",
]
