"""Other compressors, as functions from an array to bytes and back: what a study sets beside this library's codecs.

zfp, SZ3, zstandard and blosc2 are the `[bench]` extra; a compressor whose package is missing says so.
"""

from __future__ import annotations

import importlib.util
import math
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_BLOCK = 8  # of the cosine transform, as in JPEG
_HEADER = struct.Struct("<fB")  # step, bytes of a code
_CODES = {1: np.int8, 2: np.int16, 4: np.int32}


class Outside(NamedTuple):
    """A compressor of float32 arrays.

    Attributes:
      encode: Of (x, quantity, threads): the stream, uint8 [bytes]. The quantity is the absolute error bound, or bits of
        a value where it is of a fixed rate; lossless ones leave it out of account.
      decode: Of (stream, shape, threads): the array.
      package: That it needs, beside this one's requirements.
      lossless: Every bit comes back.
      is_bounded: No error is larger than the bound.
    """

    encode: Callable[[np.ndarray, float, int], np.ndarray]
    decode: Callable[[np.ndarray, tuple[int, ...], int], np.ndarray]
    package: str | None = None
    lossless: bool = False
    is_bounded: bool = True

    @property
    def is_installed(self) -> bool:
        return self.package is None or importlib.util.find_spec(self.package) is not None


def sz3(algorithm: str) -> Outside:
    """SZ3 (Liang et al., 2022) by an algorithm of its own: "LORENZO_REG" or "INTERP_LORENZO"."""

    def encode(x: np.ndarray, bound: float, threads: int) -> np.ndarray:
        import pysz

        config = pysz.szConfig()
        config.errorBoundMode = pysz.szErrorBoundMode.ABS
        config.absErrorBound = bound
        config.cmprAlgo = getattr(pysz.szAlgorithm, algorithm)
        config.openmp = threads > 1
        return _bytes(pysz.sz.compress(_four_dimensions(x), config)[0])

    def decode(stream: np.ndarray, shape: tuple[int, ...], unused_threads: int) -> np.ndarray:
        import pysz

        four = _four_dimensions(np.empty(shape, bool)).shape
        return pysz.sz.decompress(stream, np.float32, four)[0].reshape(shape)

    return Outside(encode, decode, "pysz")


def zfp(fixed_rate: bool = False) -> Outside:
    """zfp (Lindstrom, 2014), within a tolerance or at so many bits a value."""

    def encode(x: np.ndarray, quantity: float, unused_threads: int) -> np.ndarray:
        import zfpy

        how = {"rate": quantity} if fixed_rate else {"tolerance": quantity}
        return _bytes(zfpy.compress_numpy(_four_dimensions(x), **how))

    def decode(stream: np.ndarray, shape: tuple[int, ...], unused_threads: int) -> np.ndarray:
        import zfpy

        return zfpy.decompress_numpy(stream.tobytes()).reshape(shape)

    return Outside(encode, decode, "zfpy", is_bounded=not fixed_rate)


def codes_zstd() -> Outside:
    """Codes of the smallest integer type that holds them, then zstd -1: what a user can do in a few lines."""

    def encode(x: np.ndarray, bound: float, threads: int) -> np.ndarray:
        import zstandard

        packer = zstandard.ZstdCompressor(level=1, threads=threads if threads > 1 else 0)
        step = np.float32(2 * bound * (1 - 2.0**-13))
        return _packed(x, step, packer.compress)

    def decode(stream: np.ndarray, shape: tuple[int, ...], unused_threads: int) -> np.ndarray:
        import zstandard

        return _unpacked(stream, zstandard.ZstdDecompressor().decompress).reshape(shape)

    return Outside(encode, decode, "zstandard")


def cosine() -> Outside:
    """As JPEG: the cosine transform of blocks of 8 x 8 positions, quantized, then deflate.

    All frequencies have one step, twice the bound, so that the root mean square of the errors is that of an
    error-bounded codec; single errors may be larger.
    """

    def encode(x: np.ndarray, bound: float, unused_threads: int) -> np.ndarray:
        import scipy.fft

        made = scipy.fft.dctn(_blocks(x), axes=(2, 4), norm="ortho")
        return _packed(made, np.float32(2 * bound), lambda codes: zlib.compress(codes, 1))

    def decode(stream: np.ndarray, shape: tuple[int, ...], unused_threads: int) -> np.ndarray:
        import scipy.fft

        padded = _blocks(np.empty(shape, np.float32))
        made = _unpacked(stream, zlib.decompress).reshape(padded.shape)
        rows = scipy.fft.idctn(made, axes=(2, 4), norm="ortho")
        samples, height, width, channels = _image_shape(shape)
        image = rows.reshape(samples, rows.shape[1] * _BLOCK, rows.shape[3] * _BLOCK, channels)
        return np.ascontiguousarray(image[:, :height, :width]).reshape(shape)

    return Outside(encode, decode, is_bounded=False)


def blosc(name: str) -> Outside:
    """blosc2's bit shuffle and one of its lossless codecs: "LZ4" or "ZSTD"."""

    def encode(x: np.ndarray, unused_bound: float, threads: int) -> np.ndarray:
        import blosc2

        return _bytes(
            blosc2.compress2(
                x,
                codec=getattr(blosc2.Codec, name),
                clevel=1,
                filters=[blosc2.Filter.BITSHUFFLE],
                filters_meta=[0],
                typesize=4,
                nthreads=threads,
            )
        )

    def decode(stream: np.ndarray, shape: tuple[int, ...], threads: int) -> np.ndarray:
        import blosc2

        raw = blosc2.decompress2(stream.tobytes(), nthreads=threads)
        return np.frombuffer(raw, np.float32).reshape(shape)

    return Outside(encode, decode, "blosc2", lossless=True)


def _bytes(stream: bytes | np.ndarray) -> np.ndarray:
    return np.frombuffer(stream, np.uint8)


def _packed(x: np.ndarray, step: np.float32, pack: Callable[[bytes], bytes]) -> np.ndarray:
    codes = np.rint(x * np.float32(1 / step))
    largest = float(np.max(np.abs(codes), initial=0))
    size = next(size for size, dtype in _CODES.items() if largest <= np.iinfo(dtype).max)
    return _bytes(_HEADER.pack(step, size) + pack(codes.astype(_CODES[size]).data))


def _unpacked(stream: np.ndarray, unpack: Callable[[bytes], bytes]) -> np.ndarray:
    step, size = _HEADER.unpack(stream[: _HEADER.size].tobytes())
    return np.frombuffer(unpack(stream[_HEADER.size :].tobytes()), _CODES[size]).astype(
        np.float32
    ) * np.float32(step)


def _four_dimensions(x: np.ndarray) -> np.ndarray:
    """With the first dimensions as one where there are more: these libraries take four."""
    return np.ascontiguousarray(x if x.ndim <= 4 else x.reshape(-1, *x.shape[-3:]))


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """(samples, height, width, channels), channels last; a matrix or a sequence is one of a single channel."""
    sizes = [1] * (3 - len(shape)) + list(shape) + [1] * (len(shape) < 4)
    return math.prod(sizes[:-3]), sizes[-3], sizes[-2], sizes[-1]


def _blocks(x: np.ndarray) -> np.ndarray:
    """[samples, rows of blocks, 8, columns of blocks, 8, channels], filled up with the last values."""
    image: Any = x.reshape(_image_shape(x.shape))
    samples, height, width, channels = image.shape
    padding = ((0, 0), (0, -height % _BLOCK), (0, -width % _BLOCK), (0, 0))
    image = np.pad(image, padding, mode="edge")
    rows, columns = image.shape[1] // _BLOCK, image.shape[2] // _BLOCK
    return image.reshape(samples, rows, _BLOCK, columns, _BLOCK, channels)
