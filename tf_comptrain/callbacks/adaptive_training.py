"""One callback that steers error bounds and batch size together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorflow import keras

from tf_comptrain import arguments
from tf_comptrain.callbacks.adaptive_batch_size import AdaptiveBatchSize
from tf_comptrain.callbacks.adaptive_error_bound import AdaptiveErrorBound


class AdaptiveTraining(keras.callbacks.Callback):
    """Steers error bounds and batch size by memory headroom and the loss' trend.

    It is an `AdaptiveErrorBound` and an `AdaptiveBatchSize` that know of each other. Bounds follow the gradients. The
    batch grows into free memory while the loss falls, and where it stalls and tighter bounds would not matter to
    the gradients. Where memory runs short, bounds loosen as far as the error-bound law allows before the batch is
    lowered; where memory is left that no larger batch can use, they tighten. Other settings of the
    two: `training.bounds` and `training.batch` may be replaced by callbacks of one's own before training.

    `model.fit` must be given the dataset of `elastic_batch`; `tf_comptrain.fit` makes the batches itself, and
    keeps the state of this callback in its checkpoints.

    Args:
      memory: Bytes of the device allocator in all, weights included; or as text, "8GiB".
      max_batch: Largest batch. Default: limited by memory and the dataset only.
      min_batch: Smallest batch, where memory asks for it. Default: an eighth of the size that training begins with.
      lr_scaling: How the learning rate follows the batch: "linear", "sqrt" or None.
      hold: Epochs at a batch size before it grows. Default: a quarter of the training's.
      tolerance: Error / gradient that bounds are set for, root mean square over the layers.
      interval: Steps from one measurement of the gradients to the next.
      warmup: Steps before the first.
      log_dir: Folder for TensorBoard, as of `AdaptiveErrorBound`.
      verbose: 1: prints a line for each decision about the batch. 0: they go to absl's log.

    Attributes:
      bounds: The `AdaptiveErrorBound`.
      batch: The `AdaptiveBatchSize`; `training.batch.decisions` is what was decided.

    Raises:
      ValueError: A bad argument. In `fit`, before the first step and before anything is changed: as of the two.

    Examples:
      >>> data = ct.elastic_batch(samples, batch_size=64)
      >>> ct.compress_model(model)
      >>> model.fit(data, epochs=20, callbacks=[ct.AdaptiveTraining(memory="8GiB")])
    """

    def __init__(
        self,
        memory: float | str | None = None,
        *,
        max_batch: int | None = None,
        min_batch: int | None = None,
        lr_scaling: str | None = "linear",
        hold: int | None = None,
        tolerance: float = 0.2,
        interval: int = 200,
        warmup: int = 20,
        log_dir: str | Path | None = None,
        verbose: int = 1,
    ):
        super().__init__()
        if memory is None:
            raise ValueError("`memory` is missing: what a step may take at most, such as '8GiB'.")
        self.bounds = AdaptiveErrorBound(interval, tolerance=tolerance, warmup=warmup, log_dir=log_dir)
        self.batch = AdaptiveBatchSize(
            arguments.size_in_bytes("memory", memory),
            max_batch=max_batch,
            min_batch=min_batch,
            lr_scaling=lr_scaling,
            hold=hold,
            verbose=verbose,
        )

    @property
    def parts(self) -> tuple[keras.callbacks.Callback, ...]:
        """The callbacks that this one is made of, in the order in which they are called."""
        return self.bounds, self.batch

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        for part in self.parts:
            part.set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        for part in self.parts:
            part.set_model(model)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.batch.judge_bounds_by(lambda: self.bounds.gradient_error)
        self.batch.on_train_begin(logs)  # first: it refuses what does not fit before anything is changed
        self.bounds.on_train_begin(logs)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        for part in self.parts:
            part.on_train_end(logs)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for part in self.parts:
            part.on_epoch_begin(epoch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        for part in self.parts:
            part.on_epoch_end(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        for part in self.parts:
            part.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        for part in self.parts:
            part.on_train_batch_end(batch, logs)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        for part in self.parts:
            part.on_test_begin(logs)

    def on_out_of_memory(self, epoch: int, batch: int, reason: str) -> None:
        """As of `AdaptiveBatchSize`."""
        self.batch.on_out_of_memory(epoch, batch, reason)
