"""Memory of training, epoch by epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain.callbacks._peak import TrainingPeak, bytes_in_use
from tf_comptrain.compression.instrumentation import instrumentation, is_compressed
from tf_comptrain.render.units import format_bytes


class MemoryRecord(NamedTuple):
    """One epoch: an element of `MemoryLogger.records`.

    Attributes:
      epoch: From 0.
      peak_bytes: Peak of the device allocator over the training steps, weights included; 0 where
        this TensorFlow build does not count.
      resting_bytes: Bytes in use between epochs.
      stream_bytes: Bytes of all compressed activations in the epoch's first step; 0 for a plain
        model.
    """

    epoch: int
    peak_bytes: int
    resting_bytes: int
    stream_bytes: int


class MemoryLogger(keras.callbacks.Callback):
    """Logs peak and resting memory and the bytes of compressed activations after each epoch.

    The values enter the logs as "peak_bytes", "resting_bytes" and "stream_bytes": `History` keeps
    them, and so do CSVLogger and TensorBoard where they stand after this callback. Works on plain
    models too.

    Args:
      verbose: 1: prints a line per epoch.
      log_dir: Folder of TensorBoard's files, for the table of how a compressed model's activations are held, as
        a text; None: no file.

    Attributes:
      records: Every `MemoryRecord` of the last training.

    Examples:
      >>> history = model.fit(x, y, callbacks=[ct.MemoryLogger()])
      >>> history.history["peak_bytes"]
    """

    def __init__(self, verbose: int = 0, log_dir: str | Path | None = None):
        super().__init__()
        self.verbose = verbose
        self.log_dir = log_dir
        self.records: list[MemoryRecord] = []
        self._peak = TrainingPeak()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.records = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._peak.start()
        self._stream_bytes: int | None = None

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._stream_bytes is None:  # the last batch of an epoch is often a smaller one
            self._stream_bytes = self._read_streams()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._peak.stop()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        record = MemoryRecord(epoch, self._peak.stop(), bytes_in_use(), self._stream_bytes or 0)
        self.records.append(record)
        if is_compressed(self.model):
            instrumentation(self.model).report.peak_bytes = record.peak_bytes
        if logs is not None:
            logs.update(record._asdict())
            del logs["epoch"]
        if self.verbose:
            print(
                f"\nMemoryLogger, epoch {epoch + 1}: peak {format_bytes(record.peak_bytes)}, resting "
                f"{format_bytes(record.resting_bytes)}, compressed activations "
                f"{format_bytes(record.stream_bytes)}"
            )

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self.log_dir is None or not is_compressed(self.model):
            return
        writer = tf.summary.create_file_writer(str(self.log_dir))
        with writer.as_default(step=0), tf.summary.record_if(True):
            _write_text("tf_comptrain/report", instrumentation(self.model).report.to_markdown())
        writer.close()

    def _read_streams(self) -> int:
        if not is_compressed(self.model):
            return 0
        sites = instrumentation(self.model).sites().values()
        return int(sum(site.read_state().stream_bytes for site in sites))


def _write_text(tag: str, text: str) -> None:
    """What tf.summary.text does, which needs TensorBoard to be installed."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "text"
    tf.summary.write(tag, tf.constant(text), metadata=metadata)
