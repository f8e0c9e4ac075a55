"""What the allocator of the device counts: bytes in use, and the highest so far."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import tensorflow as tf

HOW_TO_COUNT = (
    "TensorFlow counts a CPU's memory only with oneDNN, which it leaves off on processors without AVX-512: set the "
    "environment variable TF_ENABLE_ONEDNN_OPTS=1 before Python starts"
)

_reserved = 0  # bytes of the largest piece of this process


def device() -> str:
    """The device whose allocator counts: the first GPU, else the CPU."""
    return "GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0"


def bytes_in_use() -> int:
    """Bytes given out now; 0 where this TensorFlow does not count."""
    return _counted("current")


def peak_bytes() -> int:
    """The most since `reset_peak`; 0 where this TensorFlow does not count."""
    return _counted("peak")


def reset_peak() -> None:
    """The peak begins again at what is in use."""
    with contextlib.suppress(ValueError):  # it does not count
        tf.config.experimental.reset_memory_stats(device())


def reserve(size: int) -> None:
    """Has a CPU's allocator take so many bytes from the system in one piece, which it then gives out and takes back.

    It cuts large pieces to size. Of small ones, which it takes one by one as a process grows, it gives a whole one of
    up to twice the size. Of the piece the system gives what is used, and 3% for the allocator's table of chunks. The
    peak begins again.

    Args:
      size: Bytes, of which whole MiB count. Where the machine has not so many, or a piece as large was taken before,
        nothing happens.
    """
    global _reserved
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device() != "CPU:0" or not _reserved < size <= there:
        return
    _reserved = size
    with contextlib.suppress(tf.errors.ResourceExhaustedError):
        tf.raw_ops.Empty(shape=[size >> 20, 1 << 16], dtype=tf.complex128, init=False)
    reset_peak()


def in_counted_memory(value: Any) -> tf.Tensor:
    """A copy in a buffer of the allocator's: NumPy's own, which TensorFlow may share, nothing counts."""
    return tf.raw_ops.DeepCopy(x=value)


def _counted(name: str) -> int:
    try:
        return int(tf.config.experimental.get_memory_info(device())[name])
    except ValueError:  # it does not count
        return 0
