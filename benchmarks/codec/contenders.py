"""What `compare.py` compares: this library's codecs through their ops, other libraries, two references.

A contender turns a float32 array into calls that are timed. Nothing here measures.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tf_comptrain.study import outside
from tf_comptrain.study.outside import Outside

OWN = ("plane", "rans", "zvc", "auto")  # the others are other libraries', or references


class Calls(NamedTuple):
    """Ready to be timed.

    Attributes:
      compress: Returns the compressed form.
      decompress: Takes it, returns the values in a form of the library's own.
      size: Bytes of the compressed form.
      values: What `decompress` returned, as an array.
    """

    compress: Callable[[], Any]
    decompress: Callable[[Any], Any]
    size: Callable[[Any], int] = len
    values: Callable[[Any], np.ndarray] = np.asarray


class Contender(NamedTuple):
    """One codec.

    Attributes:
      make: Of (x, absolute bound, threads).
      package: That it needs, beside this one's requirements.
      lossless: It takes no bound.
      threads: Whether it uses more than one.
    """

    make: Callable[[np.ndarray, float, int], Calls]
    package: str | None = None
    lossless: bool = False
    threads: bool = False

    @property
    def installed(self) -> bool:
        return self.package is None or importlib.util.find_spec(self.package) is not None


def _own(name: str, mid_rise: bool = False) -> Callable[[np.ndarray, float, int], Calls]:
    def make(x: np.ndarray, eb: float, unused_threads: int) -> Calls:
        import tensorflow as tf

        from tf_comptrain import codecs

        codec = codecs.get(name)
        tensor = tf.constant(x)
        state = tf.constant(codecs.State(bound_set=eb), tf.float32)
        shape = tf.shape(tensor)
        gate = tf.constant(0.0)
        return Calls(
            lambda: codec.compress(tensor, state, 0.1, mid_rise)[1],
            lambda stream: codec.decompress(stream, shape, tf.float32, gate),
            lambda stream: int(tf.size(stream)),
            lambda x_hat: x_hat.numpy(),
        )

    return make


def _outside(found: Outside) -> Contender:
    def make(x: np.ndarray, eb: float, threads: int) -> Calls:
        return Calls(
            lambda: found.encode(x, eb, threads), lambda stream: found.decode(stream, x.shape, threads)
        )

    return Contender(make, found.package, found.lossless, threads=found.package != "zfpy")


def _deflate(x: np.ndarray, unused_eb: float, unused_threads: int) -> Calls:
    return Calls(
        lambda: zlib.compress(x.data, 1),
        zlib.decompress,
        values=lambda raw: np.frombuffer(raw, np.float32),
    )


def _run_lengths(x: np.ndarray, unused_eb: float, unused_threads: int) -> Calls:
    """cDMA's run-length coding of zeros: for the ratio; in NumPy, so its speed says nothing of a kernel's.

    The non-zeros, and for alternating runs of zeros and non-zeros one u16 each.
    """
    flat = x.reshape(-1).view(np.uint32)

    def compress() -> tuple[np.ndarray, np.ndarray]:
        on = flat != 0
        edges = np.flatnonzero(np.diff(on, prepend=False, append=not on[-1] if on.size else True))
        runs = np.diff(edges, prepend=0)
        # A run of more than a u16 is cut by empty ones of the other kind.
        counts = np.maximum(-(-runs // 65535), 1)
        cut = np.zeros(int(np.sum(2 * counts - 1)), np.uint16)
        last = np.cumsum(2 * counts - 1) - 1
        full = np.ones(cut.size, bool)
        full[last] = False
        starts = last - 2 * (counts - 1)
        full[(np.arange(cut.size) - np.repeat(starts, 2 * counts - 1)) % 2 == 1] = False
        cut[full] = 65535
        cut[last] = runs - (counts - 1) * 65535
        return cut, flat[on]

    def decompress(stream: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        runs, values = stream
        on = np.repeat(np.arange(runs.size) % 2 == 1, runs)
        out = np.zeros(flat.size, np.uint32)
        out[: on.size][on] = values
        return out

    return Calls(
        compress,
        decompress,
        lambda stream: stream[0].nbytes + stream[1].nbytes,
        lambda raw: raw.view(np.float32),
    )


def _memcpy(x: np.ndarray, unused_eb: float, unused_threads: int) -> Calls:
    to = np.zeros_like(x)
    back = np.zeros_like(x)

    def copy(target: np.ndarray, source: np.ndarray) -> np.ndarray:
        np.copyto(target, source)
        return target

    return Calls(lambda: copy(to, x), lambda stream: copy(back, stream), lambda stream: stream.nbytes)


def contenders() -> dict[str, Contender]:
    """All of them, by name; those of this library as far as it has them."""
    from tf_comptrain import codecs

    own = {
        "plane": Contender(_own("plane"), threads=True),
        "plane mid-rise": Contender(_own("plane", mid_rise=True), threads=True),
        "plane dither": Contender(_own("plane+dither"), threads=True),
        "rans": Contender(_own("rans"), threads=True),
        "rans mid-rise": Contender(_own("rans", mid_rise=True), threads=True),
        "rans dither": Contender(_own("rans+dither"), threads=True),
        "zvc": Contender(_own("zvc"), lossless=True, threads=True),
        "auto": Contender(_own("auto"), threads=True),
    }
    return {
        **{name: own[name] for name in own if name.split()[0] in codecs.CODECS},
        "sz3 lorenzo": _outside(outside.sz3("LORENZO_REG")),
        "sz3 interpolation": _outside(outside.sz3("INTERP_LORENZO")),
        "zfp": _outside(outside.zfp()),
        "codes + zstd": _outside(outside.codes_zstd()),
        "blosc2 lz4": _outside(outside.blosc("LZ4")),
        "blosc2 zstd": _outside(outside.blosc("ZSTD")),
        "deflate": Contender(_deflate, lossless=True),
        "run lengths": Contender(_run_lengths, lossless=True),
        "memcpy": Contender(_memcpy, lossless=True),
    }
