"""What a run holds and takes, measured while it trains."""

from __future__ import annotations

import time

from tensorflow import keras

from tf_comptrain import memory
from tf_comptrain.compression.instrumentation import instrumentation, is_compressed
from tf_comptrain.compression.rows import traced

_EVERY = 10  # steps; the first step of an epoch is always one of them
_FACTORS = ("convolution", "linear")  # what weight gradients multiply with incoming gradients


class Meter(keras.callbacks.Callback):
    """Seconds per step, and bytes of the inputs of convolutions and dense layers, plain and held.

    Those of the step that was traced: a tensor that several layers read is held once and counts once, on both
    sides; the batch itself, small tensors and those whose size is not known when a step is traced count on neither.

    Args:
      batch: Images per batch.
    """

    def __init__(self, batch: int):
        super().__init__()
        self.batch = batch
        self.epochs: list[float] = []
        self.steps_s: list[float] = []
        self.steps_cpu_s: list[float] = []
        self._total = [0.0, 0.0]

    def on_epoch_begin(self, epoch, logs=None):
        self._sums = [0.0, 0.0]
        self._step = 0

    def on_train_batch_begin(self, batch, logs=None):
        memory.synchronize()
        self._start = time.perf_counter(), time.process_time()

    def on_train_batch_end(self, batch, logs=None):
        memory.synchronize()
        now = time.perf_counter(), time.process_time()
        if self._step > 1:  # the first ones trace and warm up
            self.steps_s.append(now[0] - self._start[0])
            self.steps_cpu_s.append(now[1] - self._start[1])
        if self._step % _EVERY == 0:
            self._read()
        self._step += 1

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(self._sums[0] / self._sums[1] if self._sums[1] else 1.0)
        self._total = [a + b for a, b in zip(self._total, self._sums)]

    def ratio(self) -> float:
        """float32 bytes / bytes held, over the whole training; 1 for a plain model."""
        return self._total[0] / self._total[1] if self._total[1] else 1.0

    def _read(self) -> None:
        held = instrumentation(self.model).held if is_compressed(self.model) else None
        for row in () if held is None else traced(held, ()).rows:
            if row.storage == "compress" and row.value_bytes and held.sites[row.layer].kind in _FACTORS:
                self._sums[0] += self.batch * row.value_bytes
                self._sums[1] += held.sites[row.layer].read_state().stream_bytes
