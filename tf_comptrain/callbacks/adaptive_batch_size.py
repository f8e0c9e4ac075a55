"""A batch size that grows into the memory that compression freed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging
from tensorflow import keras

from tf_comptrain import _keras, arguments
from tf_comptrain.callbacks._peak import TrainingPeak, bytes_in_use, counts_bytes
from tf_comptrain.callbacks._tuner import TunerLimits, TunerState, decide, retreat
from tf_comptrain.callbacks.elastic import ElasticBatch
from tf_comptrain.compression.instrumentation import Instrumentation, instrumentation
from tf_comptrain.compression.restored_state import SavedState
from tf_comptrain.memory.counters import HOW_TO_COUNT

_LR_POWER = {"linear": 1.0, "sqrt": 0.5, None: 0.0}


class Decision(NamedTuple):
    """What was decided: an element of `AdaptiveBatchSize.decisions`.

    Attributes:
      epoch: The epoch from whose start, or from whose middle, it holds; from 0.
      action: "grow", "undo", "lower", "tighten", "loosen" or "keep".
      batch: Batch size from then on.
      learning_rate: From then on.
      bound_scale: Factor on all error bounds.
      loss: Of the epoch before.
      peak_bytes: Since the batch size was set, or else over the epoch before.
      reason: In words.
    """

    epoch: int
    action: str
    batch: int
    learning_rate: float
    bound_scale: float
    loss: float
    peak_bytes: int
    reason: str


class AdaptiveBatchSize(keras.callbacks.Callback):
    """Steers the batch size by memory headroom and loss trend.

    After each step: where the peak passed the limit, bounds that were tightened, or that the error-bound law has
    room for, are doubled; where that is not enough, the batch is lowered at once, to a size that
    went through an epoch within the limit if there is one. The epoch goes on with the samples that are left.

    Before each epoch but the first, by the trend of the loss over the last epochs (Mann-Kendall test, 5 %):

    - it falls, or stalls, and the batch was held for `hold` epochs: the batch grows, at most by `growth` and by no
      less than a quarter, into the headroom: limit minus measured peak, over bytes per sample as measured;
    - it stalls or rises over `patience` epochs: first all error bounds are halved, down to
      `min_bound_scale`, while their error of the gradients could matter (above 0.1 of the gradient by the law);
    - it is higher than before the batch grew (Mann-Whitney test, 2 %; two epochs far above), or not finite: the last
      growth is undone for good. The batch is again of the size that it grew from, and weights, slots and learning rate
      are those of before; of a second growth in a row, the batch alone. The batch is never below its start, but for
      memory;
    - the batch can grow no more, and memory is left: bounds are halved.

    The learning rate follows the batch: "linear" multiplies it by new / old (Goyal et al.), "sqrt"
    by the square root (usual with Adam), None leaves it. A schedule is scaled likewise, and counts
    samples then: a step of four times the batch takes it four steps on, so that it ends where it was
    meant to. Nothing is retraced, but for a schedule once, when training begins. At the end of
    training batch and learning rate stay as they are, and another `fit` goes on from there.

    `model.fit` must be given the dataset of `elastic_batch`; `tf_comptrain.fit` makes the batches itself,
    and goes on after running out of memory. Works with or without `AdaptiveErrorBound`.

    Args:
      limit_bytes: Bytes of the device allocator in all, weights included; or as text, "2GB".
      max_batch: Largest batch. Default: limited by memory and the dataset only.
      min_batch: Smallest batch. Default: an eighth of the size that training begins with.
      lr_scaling: "linear", "sqrt" or None.
      growth: Largest new batch / old batch, and the divisor when lowering.
      margin: Part of the limit that stays free when the batch grows.
      hold: Epochs at a batch size before it grows. Default: a quarter of the training's, since large batches
        cost least accuracy late in a training (Smith et al., 2018). 1: grows as fast as memory allows.
      patience: Epochs without a trend that count as a stall.
      min_bound_scale: Smallest factor on the error bounds.
      verbose: 1: prints a line for each decision. 0: they go to absl's log.

    Attributes:
      decisions: Every `Decision` of the last training.

    Raises:
      ValueError: A bad argument. In `fit`, before the first step: the model is not compressed, the
        dataset is not elastic, the limit is below what is in use already, `max_batch` is below the
        batch that training begins with, or this TensorFlow build does not count allocated bytes.

    Examples:
      >>> data = ct.elastic_batch(samples, batch_size=64)
      >>> ct.compress_model(model)
      >>> tuner = ct.AdaptiveBatchSize(limit_bytes="2GB", max_batch=1024)
      >>> model.fit(data, epochs=20, callbacks=[ct.AdaptiveErrorBound(), tuner])

    Known weakness: weights and slots of before the last growth are in the host's memory until training ends. A step's
    peak is known after the step, so that one step passes the limit before the batch goes back; under `model.fit` a step
    that runs out of memory ends the training. Under XLA the step is compiled once for each size, and once for the
    incomplete last batch of each: `elastic_batch(drop_remainder=True)` has none. Sizes are 2, 3, 4, 6, 8, 12, ... times
    8 there, so that they are few.
    """

    def __init__(
        self,
        limit_bytes: float | str | None = None,
        max_batch: int | None = None,
        min_batch: int | None = None,
        lr_scaling: str | None = "linear",
        growth: float = 2.0,
        margin: float = 0.05,
        patience: int = 5,
        min_bound_scale: float = 0.25,
        verbose: int = 1,
        hold: int | None = None,
    ):
        super().__init__()
        max_batch = None if max_batch is None else arguments.whole("max_batch", max_batch)
        min_batch = None if min_batch is None else arguments.whole("min_batch", min_batch)
        if max_batch is not None and min_batch is not None and max_batch < min_batch:
            raise ValueError(
                f"`max_batch` must be at least `min_batch`. Received: max_batch={max_batch}, "
                f"min_batch={min_batch}."
            )
        if lr_scaling not in _LR_POWER:
            raise ValueError(f"`lr_scaling` must be 'linear', 'sqrt' or None. Received: {lr_scaling!r}.")
        if limit_bytes is None:
            raise ValueError("`limit_bytes` is missing: what a step may take at most, such as '8GB'.")
        self.limit_bytes = arguments.size_in_bytes("limit_bytes", limit_bytes)
        self.max_batch = max_batch
        self.min_batch = min_batch
        self.hold = None if hold is None else arguments.whole("hold", hold)
        self.lr_scaling = lr_scaling
        self.verbose = verbose
        self.decisions: list[Decision] = []
        self._policy = TunerLimits(
            limit_bytes=self.limit_bytes,
            max_batch=max_batch or 0,
            min_batch=min_batch or 0,
            growth=arguments.real("growth", growth, above=1),
            margin=arguments.real("margin", margin, least=0, below=1),
            patience=arguments.whole("patience", patience),
            min_bound_scale=arguments.real("min_bound_scale", min_bound_scale, above=0, most=1),
        )
        self._peak = TrainingPeak()
        self._gradient_error: Callable[[], float | None] = lambda: None

    def judge_bounds_by(self, gradient_error: Callable[[], float | None]) -> None:
        """Has decisions know the error of the gradients.

        Args:
          gradient_error: Returns error / gradient at the bounds as they are; None where nobody knows.
        """
        self._gradient_error = gradient_error

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._handle: Instrumentation = instrumentation(self.model)
        self._elastic = self._checked_dataset()
        self._resting_bytes = self._checked_resting_bytes()
        start = self._elastic.size
        self._policy = self._policy._replace(
            max_batch=min(self.max_batch or self._elastic.samples, self._elastic.samples),
            min_batch=self.min_batch or max(start // 8, 1),
            multiple=8 * self.model.distribute_strategy.num_replicas_in_sync,
            hold=self.hold or max(self.params["epochs"] // 4, 1),
            few_sizes=_keras.jit_compile(self.model),
        )
        self._check_start(start)
        self._pace = None
        if _keras.has_schedule(self.model.optimizer):
            self._pace = self._handle.pace_schedule(self.model)
            self._follow(start)
        self._handle.reset_bounds()
        self._state = TunerState(start)
        self._outcome: tuple[float, int] | None = None
        self._before_growth: tuple[int, SavedState] | None = None  # with the batch that it grew from
        self._peak.stop()  # which a training that was interrupted has left running
        self._measured = False  # whether a step began since the batch was set in the middle of an epoch
        self.decisions = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch
        if self._outcome is not None:
            loss, peak_bytes = self._outcome
            decision = decide(
                self._state, self._policy, loss, peak_bytes, self._resting_bytes, self._gradient_error()
            )
            self._apply(epoch, *decision, loss, peak_bytes)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._peak.running:
            self._peak.start()
            self._measured = True

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None and "loss" not in logs:
            raise ValueError(
                "AdaptiveBatchSize steers by the logs' `loss`, and the train step logs none: return it from "
                f"`train_step`. Received logs of: {', '.join(logs) or 'nothing'}."
            )
        peak_bytes = self._largest(self._peak.read())
        if peak_bytes > self.limit_bytes:
            after, action, reason = retreat(
                self._state, self._policy, peak_bytes, self._resting_bytes, self._gradient_error()
            )
            if action != "keep":
                self._peak.stop()  # until the next step begins: this one's batch is let go of before
                self._measured = False
                self._apply(self._epoch, after, action, reason, self._state.last, peak_bytes)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._peak.stop()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = {} if logs is None else logs
        peak_bytes = self._largest(self._peak.stop())
        self._outcome = (float(logs.get("loss", math.nan)), peak_bytes) if self._measured else None
        logs["batch_size"] = self._state.batch

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._before_growth = None

    def on_out_of_memory(self, epoch: int, batch: int, reason: str) -> None:
        """`tf_comptrain.fit` lowered the batch in the middle of an epoch: it stays below the one that failed."""
        before = self._state
        after = before._replace(
            batch=batch,
            epochs=0,
            since=0,
            peak_bytes=0,
            losses=(),
            ceiling=min(before.ceiling, before.batch - 1),
        )
        self._apply(epoch, after, "lower", f"out of memory: {reason}", before.last, 0)
        self._peak.start()

    def _apply(
        self, epoch: int, after: TunerState, action: str, reason: str, loss: float, peak_bytes: int
    ) -> None:
        before, self._state, optimizer = self._state, after, self.model.optimizer
        rate = before_rate = float(tf.convert_to_tensor(optimizer.learning_rate))
        if action == "grow":
            self._before_growth = before.batch, SavedState(self.model)
        elif action == "undo":
            reason += self._undo(after.batch)
        if after.batch != before.batch:
            self._elastic.resize(after.batch)
            rate = before_rate * (after.batch / before.batch) ** _LR_POWER[self.lr_scaling]
            if self._pace is not None:
                self._follow(after.batch)
                rate = float(tf.convert_to_tensor(optimizer.learning_rate))
            elif self.lr_scaling:
                optimizer.learning_rate = rate
        if (
            after.bound_scale != 1.0 or before.bound_scale != 1.0
        ):  # relative bounds go on following their tensors
            self._handle.scale_bounds(after.bound_scale)
        self.decisions.append(
            Decision(epoch, action, after.batch, rate, after.bound_scale, loss, peak_bytes, reason)
        )
        line = f"AdaptiveBatchSize, epoch {epoch + 1}: {action}"
        if action in ("grow", "undo", "lower"):
            line += f", batch {before.batch} -> {after.batch}, learning rate {before_rate:.4g} -> {rate:.4g}"
        elif action in ("tighten", "loosen"):
            line += f", error bounds x {after.bound_scale:g}"
        if self.verbose:
            print(f"{line}: {reason}")
        else:
            logging.info("%s: %s", line, reason)

    def _undo(self, batch: int) -> str:
        """Has the weights of before it grew from that, and says so; "" where they are there no longer."""
        kept, self._before_growth = self._before_growth, None
        if kept is None or kept[0] != batch:
            return ""
        kept[1].put_back()
        return "; the weights are those of before"

    def _follow(self, batch: int) -> None:
        """Sets the schedule's factor and pace for a batch size; it goes on from where it is."""
        assert self._pace is not None
        _, before, offset = (float(v) for v in self._pace.numpy())
        pace = batch / self._elastic.first
        offset += (before - pace) * _keras.steps_of(self.model.optimizer)
        self._pace.assign((pace ** _LR_POWER[self.lr_scaling], pace, offset))

    def _largest(self, found_bytes: int) -> int:
        """Of all workers, which decide alike then."""
        return _keras.largest(self.model.distribute_strategy, found_bytes)

    def _checked_dataset(self) -> ElasticBatch:
        _keras.require_keras_3("AdaptiveBatchSize", "Use a fixed batch size")
        elastic = getattr(_keras.fitted_dataset(), "elastic", None)
        if not isinstance(elastic, ElasticBatch):
            raise ValueError(
                "AdaptiveBatchSize needs `fit` to be given the dataset that tf_comptrain.elastic_batch"
                "(dataset, batch_size) returned, as it is: without a further map, batch or prefetch, and "
                "without class_weight. Received another kind of data."
            )
        steps = self.params.get("steps")
        if steps is not None and steps != elastic.steps:
            raise ValueError(
                f"`steps_per_epoch` must be left out with AdaptiveBatchSize: an epoch is one pass over the "
                f"data, {elastic.steps} steps at batch size {elastic.size}. Received: {steps}."
            )
        return elastic

    def _checked_resting_bytes(self) -> int:
        _keras.build_optimizer(self.model)
        if not counts_bytes():
            raise ValueError(
                "AdaptiveBatchSize needs the allocator's peak, and this TensorFlow does not count allocated bytes. "
                f"{HOW_TO_COUNT}, or choose the batch size by hand."
            )
        resting = self._largest(bytes_in_use())
        if self.limit_bytes <= resting:
            raise ValueError(
                f"`limit_bytes` must be above the {resting} bytes that are in use before the first step "
                f"(weights, optimizer, data). Received: {self.limit_bytes}."
            )
        return resting

    def _check_start(self, start: int) -> None:
        if self.max_batch is not None and self.max_batch < start:
            raise ValueError(
                f"`max_batch` must be at least the batch size that training begins with, {start}. "
                f"Received: {self.max_batch}. Lower the batch_size of elastic_batch, or raise max_batch."
            )
        replicas = self.model.distribute_strategy.num_replicas_in_sync
        if start < replicas:
            raise ValueError(
                f"`batch_size` must be at least a sample for each of the {replicas} replicas. Received: {start}."
            )
        if self._policy.min_batch > start:
            raise ValueError(
                f"`min_batch` must be at most the batch size that training begins with, {start}. "
                f"Received: {self.min_batch}."
            )
