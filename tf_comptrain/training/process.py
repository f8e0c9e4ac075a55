"""Where a training runs: what it leaves to its process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain.training import snapshot
from tf_comptrain.training.snapshot import Snapshot


class Process:
    """One process that trains alone. That of several which train together is in `distribute`.

    Attributes:
      leads: Whether it writes the files, and speaks.
      goes_back: Whether training goes on from the last snapshot where a step ran out of memory.
    """

    leads = True
    goes_back = True

    def read(self, folder: Path) -> tuple[Snapshot, dict[str, Any]] | None:
        """`snapshot.read`."""
        return snapshot.read(folder)

    def ends_now(self, model: keras.Model) -> bool:
        """Whether a callback has ended the training; asked after each step."""
        return model.stop_training

    def ends(self, model: keras.Model) -> bool:
        """The same; asked before snapshots, and after epochs."""
        return model.stop_training

    def evaluate(self, model: keras.Model, data: Any, batch: int, callbacks: Any) -> dict:
        """What `model.evaluate` returns.

        Args:
          model: The model.
          data: `validation_data` of `fit`.
          batch: Samples per batch, where that is no dataset.
          callbacks: Keras' container.
        """
        sized = not isinstance(data, tf.data.Dataset)
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data) if sized else (data, None, None)
        return model.evaluate(
            x,
            y,
            batch_size=batch if sized else None,
            sample_weight=weight,
            callbacks=callbacks,
            return_dict=True,
            verbose=0,
        )
