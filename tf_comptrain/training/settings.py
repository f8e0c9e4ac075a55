"""The arguments of `fit`, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from tensorflow import keras

from tf_comptrain import arguments
from tf_comptrain.training import checks


class Settings(NamedTuple):
    """Arguments of `fit`."""

    batch_size: int
    epochs: int
    snapshot_every: int
    checkpoint_dir: str | Path | None
    validation_data: Any
    callbacks: Any
    verbose: int
    min_batch: int = 1
    retries: int = 0
    on_oom: str = "batch"

    def checked(self, model: keras.Model) -> Settings:
        """With numbers as such, and the folder as a path. Raises what `fit` does."""
        batch_size = arguments.whole("batch_size", self.batch_size)
        epochs = arguments.whole("epochs", self.epochs)
        snapshot_every = arguments.whole("snapshot_every", self.snapshot_every)
        min_batch = arguments.whole("min_batch", self.min_batch)
        retries = arguments.whole("retries", self.retries, least=0)
        if min_batch > batch_size:
            raise ValueError(
                f"`min_batch` must be at most `batch_size`. Received: min_batch={min_batch}, batch_size={batch_size}."
            )
        if self.on_oom not in ("batch", "microbatch"):
            raise ValueError(f"`on_oom` must be 'batch' or 'microbatch'. Received: {self.on_oom!r}.")
        min_batch = max(min_batch, checks.replicas(model, batch_size))
        verbose = checks.verbosity(self.verbose)
        checks.check_callbacks(self.callbacks)
        checks.check_validation(self.validation_data)
        folder = None if self.checkpoint_dir is None else checks.folder(self.checkpoint_dir)
        given = self.validation_data, self.callbacks, verbose, min_batch, retries, self.on_oom
        return Settings(batch_size, epochs, snapshot_every, folder, *given)
