"""The allocator's peak over the training steps of an epoch."""

from __future__ import annotations

import gc

import tensorflow as tf

from tf_comptrain import memory

_PROBE_BYTES = 1 << 22


def bytes_in_use() -> int:
    """Bytes of the device allocator now, garbage of Python's collected; 0 where it does not count.

    Some allocators count large tensors only (256 kB and more).
    """
    gc.collect()
    return int(tf.config.experimental.get_memory_info(memory.device())["current"])


def counts_bytes() -> bool:
    """Whether this TensorFlow build counts what it allocates on the device."""
    with tf.device(memory.device()):
        probe = tf.random.uniform([_PROBE_BYTES // 4])
    counted = bytes_in_use()
    del probe
    return counted >= _PROBE_BYTES


class TrainingPeak:
    """Measures from `start` to the first `stop`: validation that follows is left out."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._running = False

    def start(self) -> None:
        tf.config.experimental.reset_memory_stats(memory.device())
        self._running = True

    def stop(self) -> int:
        """The peak in bytes, weights included; the same again at further calls."""
        if self._running:
            self.peak_bytes = int(tf.config.experimental.get_memory_info(memory.device())["peak"])
            self._running = False
        return self.peak_bytes
