"""`tf-comptrain bench codec`: ratio, speed and error of this library's codecs on the same arrays.

benchmarks/codec/compare.py sets other compressors beside them, on activations of trained networks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from rich.table import Table

from tf_comptrain import codecs
from tf_comptrain.cli import options
from tf_comptrain.memory.measure import timed_call
from tf_comptrain.render import text

_SMALLEST = 4096  # elements: a smaller array measures calls, not codecs


class CodecRow(NamedTuple):
    """What one codec does to one array.

    Attributes:
      codec: Its name.
      data: Name of the array.
      eb: Absolute error bound; 0 of a lossless codec.
      ratio: float32 bytes / bytes of the stream.
      compress_gb_s: GB of float32 a second, by the clock, with the threads that TensorFlow has.
      decompress_gb_s: The same of decoding.
      max_error: Largest difference from the array.
      zeros_kept: Share of its zeros that come back as zeros; None where there are none.
    """

    codec: str
    data: str
    eb: float
    ratio: float
    compress_gb_s: float
    decompress_gb_s: float
    max_error: float
    zeros_kept: float | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `main`."""
    parser.add_argument(
        "--batch", type=options.positive, default=64, help="images of activations (%(default)s)"
    )
    parser.add_argument(
        "--data", type=Path, nargs="+", default=[], help="npz files with arrays, in place of activations"
    )
    options.add_codecs(parser)
    parser.set_defaults(function=main)


def main(args: argparse.Namespace) -> int:
    """Measures and prints; returns 2 for files that do not serve."""
    try:
        arrays = _read(args.data) if args.data else activations(args.batch)
    except (OSError, ValueError) as error:
        text.complain(error)
        return 2
    rows = [
        measure(name, data, x, bound, args.repeats)
        for data, x in arrays.items()
        for name in args.codecs or codecs.CODECS
        for bound in _bounds(name, x, args.eb_sigma)
    ]
    if args.json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
    else:
        text.show(_table(rows))
    return 0


def activations(batch: int) -> dict[str, np.ndarray]:
    """What a convolution with random weights, a normalization and a ReLU make of gratings under noise.

    Returns:
      Float32 arrays [batch, 32, 32, 64]: "dense" is the normalization's output, "relu" that of the ReLU.
    """
    random = np.random.default_rng(0)
    rows, columns = np.mgrid[0:32, 0:32].astype(np.float32)
    angle, phase = random.uniform(0, 2 * np.pi, size=(2, batch, 1, 1))
    waves = np.sin(0.7 * (np.cos(angle) * rows + np.sin(angle) * columns) + phase)
    images = waves[..., None] + random.normal(0, 0.3, size=(batch, 32, 32, 3))
    kernel = random.normal(size=(5, 5, 3, 64))
    made = tf.nn.conv2d(tf.constant(images, tf.float32), tf.constant(kernel, tf.float32), 1, "SAME")
    mean, variance = tf.nn.moments(made, (0, 1, 2))
    dense = (made - mean) * tf.math.rsqrt(variance)
    return {"dense": dense.numpy(), "relu": tf.nn.relu(dense).numpy()}


def measure(name: str, data: str, x: np.ndarray, bound: float, repeats: int) -> CodecRow:
    """Encodes and decodes an array `repeats` times.

    Args:
      name: Of the codec.
      data: Of the array.
      x: The array, float32.
      bound: Absolute; 0 for a lossless codec.
      repeats: How often each call is timed; the median counts.
    """
    codec = codecs.get(name)
    tensor = tf.constant(x)
    state = tf.constant(codecs.State(bound_set=bound), tf.float32)
    shape, gate = tf.shape(tensor), tf.constant(0.0)
    stream, compress_s = timed_call(lambda: codec.compress(tensor, state, 0.1, False)[1], repeats)
    decoded, decompress_s = timed_call(lambda: codec.decompress(stream, shape, tf.float32, gate), repeats)
    x_hat, zeros = decoded.numpy(), x == 0
    return CodecRow(
        name,
        data,
        bound,
        x.nbytes / int(tf.size(stream)),
        x.nbytes / 1e9 / compress_s,
        x.nbytes / 1e9 / decompress_s,
        float(np.max(np.abs(x.astype(np.float64) - x_hat))),
        float(np.mean(x_hat[zeros] == 0)) if zeros.any() else None,
    )


def _bounds(name: str, x: np.ndarray, ratios: list[float]) -> list[float]:
    if name == codecs.ZvcCodec.format:
        return [0.0]
    sigma = float(np.std(x, dtype=np.float64))
    return [ratio * sigma for ratio in ratios]


def _read(paths: list[Path]) -> dict[str, np.ndarray]:
    """The arrays of two and more dimensions in npz files, as float32.

    Raises:
      ValueError: There is no such array in one of them.
    """
    found = {}
    for path in paths:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        fit = {
            n: a for n, a in arrays.items() if a.ndim >= 2 and a.size >= _SMALLEST and a.dtype.kind in "iuf"
        }
        if not fit:
            raise ValueError(
                f"`--data` must hold numeric arrays of two or more dimensions, of {_SMALLEST} elements at least. "
                f"Received: {path}."
            )
        found.update({f"{path.stem}/{n}": np.ascontiguousarray(a, np.float32) for n, a in fit.items()})
    return found


def _table(rows: list[CodecRow]) -> Table:
    """Rows as a table, one section for each array."""
    numbers = ("bound", "ratio", "compress", "decompress", "max error", "zeros kept")
    title = "codecs: GB of float32 a second, by the clock"
    shown = text.table_of(title, ("data", "codec", *numbers), numbers)
    for number, row in enumerate(rows):
        shown.add_row(
            row.data if number == 0 or rows[number - 1].data != row.data else "",
            row.codec,
            f"{row.eb:.3g}",
            f"{row.ratio:.2f}",
            f"{row.compress_gb_s:.2f}",
            f"{row.decompress_gb_s:.2f}",
            f"{row.max_error:.3g}",
            "" if row.zeros_kept is None else f"{row.zeros_kept:.1%}",
            end_section=number + 1 == len(rows) or rows[number + 1].data != row.data,
        )
    return shown
