"""The allocator's peak over the training steps of an epoch."""

from __future__ import annotations

import gc
import weakref
from typing import ClassVar

import tensorflow as tf

from tf_comptrain import memory
from tf_comptrain.memory import counters

_PROBE_BYTES = 1 << 22


def bytes_in_use() -> int:
    """Bytes of the device allocator now, garbage of Python's collected; 0 where it does not count.

    Some allocators count large tensors only (256 kB and more).
    """
    gc.collect()
    return counters.bytes_in_use()


def counts_bytes() -> bool:
    """Whether this TensorFlow build counts what it allocates on the device."""
    with tf.device(memory.device()):
        probe = tf.random.uniform([_PROBE_BYTES // 4])
    counted = bytes_in_use()
    del probe
    return counted >= _PROBE_BYTES


class TrainingPeak:
    """Measures from `start` to the first `stop`: validation that follows is left out.

    The allocator has one peak for all who ask: before one of them resets it, the others take note.
    """

    _measuring: ClassVar[weakref.WeakSet[TrainingPeak]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.peak_bytes = 0

    @property
    def running(self) -> bool:
        return self in self._measuring

    def start(self) -> None:
        for other in self._measuring:
            other.read()
        counters.reset_peak()
        self.peak_bytes = 0
        self._measuring.add(self)

    def read(self) -> int:
        """The peak in bytes since `start`, weights included; the same again after `stop`."""
        if self.running:
            self.peak_bytes = max(self.peak_bytes, counters.peak_bytes())
        return self.peak_bytes

    def stop(self) -> int:
        peak = self.read()
        self._measuring.discard(self)
        return peak
