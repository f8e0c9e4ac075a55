"""Training that survives running out of memory, and being killed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.callbacks import ElasticBatch
from tf_comptrain.memory import remedies
from tf_comptrain.memory.memory_limit import StepRefusedError
from tf_comptrain.placement import accumulation
from tf_comptrain.training import checks, folder_lock, keras_callbacks, snapshot
from tf_comptrain.training.events import OUT_OF_MEMORY, OUT_OF_MEMORY_IN_VALIDATION, RESUMED, TrainingEvent
from tf_comptrain.training.process import Process
from tf_comptrain.training.samples import Samples, distributed
from tf_comptrain.training.settings import Settings
from tf_comptrain.training.snapshot import Snapshot, TrainingPosition


def fit(
    model: keras.Model,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int = 32,
    epochs: int = 1,
    snapshot_every: int = 100,
    checkpoint_dir: str | Path | None = None,
    min_batch: int = 1,
    retries: int = 0,
    on_oom: str = "batch",
    shuffle: bool | int = True,
    seed: int = 0,
    sample_weight: Any = None,
    validation_data: Any = None,
    callbacks: Any = None,
    verbose: int = 1,
) -> keras.callbacks.History:
    """Trains like `model.fit`, through steps that run out of memory and through being killed.

    Every `snapshot_every` steps, and at the start of each epoch, the state is copied to host
    memory: weights, optimizer, seeds, metrics, error bounds, the plain attributes of the callbacks (numbers,
    strings, arrays, functions that can be imported, and containers of those), position in the data and
    batch size. A step that raises ResourceExhaustedError puts that state back, halves the batch
    (`on_oom="batch"`) or the microbatches that it is computed in (`on_oom="microbatch"`), and training goes
    on from there. With `checkpoint_dir` the same state is on disk, and the same call in a new process
    goes on from it, in the middle of an epoch too. Arguments of callbacks (a `patience`, a `limit_bytes`),
    `batch_size` and `epochs` may be others then: where the training itself has not changed a value, the
    new call's holds. The learning rate is the checkpoint's.

    The samples of an epoch come in an order that `seed` and the epoch alone determine, and the
    position counts samples, so a new batch size neither repeats nor leaves out any. A dataset must
    give the same elements each time it is read. After
    `tf.config.experimental.enable_op_determinism()` a training that was killed, or ran out of
    memory and was replayed at the same batch size (`retries`), ends with the same weights, bit for
    bit, as one that was not; random numbers must come from Keras' layers and seed generators, or
    from stateless ops.

    The learning rate stays when the batch is lowered; `AdaptiveBatchSize` scales it by its rule, and needs no
    `elastic_batch` here. In microbatches batch and learning rate stay: the gradients of the parts are added
    up, for one update. Losses are those of the whole batch up to rounding, but for dropout, which draws for
    each part, and batch normalization, whose statistics are those of each part.

    Args:
      model: Compiled; compressed or not; on one device, or made under a tf.distribute.MirroredStrategy:
        each batch is split among its replicas then, and up to as many samples as there are replicas, less
        one, are left out at the end of an epoch.
      x: Arrays with `y` (or a structure of them), or a tf.data.Dataset of single samples of known
        length, (x, y) or (x, y, sample_weight), or a function from the epoch, counted from 0, to such a dataset,
        of any length each.
      y: Targets, where `x` is arrays.
      batch_size: Samples per batch to begin with, over all replicas.
      epochs: Number of the last epoch, counted from 1.
      snapshot_every: Steps from one snapshot to the next: what a failure costs at most.
      checkpoint_dir: Folder of the state on disk, of one training at a time; a checkpoint there is continued,
        unless a callback had ended that training. None: none.
      min_batch: Smallest batch or microbatch, at least a sample for each replica. Running out of memory at
        this size raises.
      retries: How often a failed stretch is replayed at the same size before that is lowered.
      on_oom: What running out of memory halves: "batch", or "microbatch", which keeps the batch. Where
        microbatches would not give the batch's gradient (a `train_step` of the model's own, a loss that is no
        mean over samples, several replicas) the batch is halved, and the event says why.
      shuffle: Whether each epoch is shuffled. For a dataset a number is the size of the buffer it
        is shuffled in, True 10,000. A function's datasets are taken as they are.
      seed: Of the shuffling.
      sample_weight: Array, where `x` is arrays. For class weights: class_weights[y].
      validation_data: As for `model.fit`; arrays are evaluated in batches of the training's size.
      callbacks: As for `model.fit`; no BackupAndRestore, which `checkpoint_dir` does. Where a training goes on,
        CSVLogger appends to its file.
      verbose: 0: silent (events go to absl's log). 1: progress bar. 2: a line per epoch.

    Returns:
      The History. Its key "events" holds the tuple of `TrainingEvent`s of each epoch.

    Raises:
      ValueError: Before training: a dataset that is batched, of unknown length or unsteady order;
        `min_batch` above `batch_size`; a checkpoint of another model or other data, or a damaged one; bad numbers; a
        `checkpoint_dir` that is no folder; a BackupAndRestore; a strategy of several replicas that is no
        MirroredStrategy.
        While training: the dataset that a function gives for an epoch is none of these.
      TypeError: Before training: `model`, `x`, `callbacks` or `validation_data` of another type.
      OSError: The checkpoint cannot be written, or read. The last complete one is still in place, and the
        model is as it was after the last step.
      RuntimeError: Another ct.fit is training in `checkpoint_dir`. Keras 2.
      tf.errors.ResourceExhaustedError: Out of memory at `min_batch`. The model is as it was at the
        last snapshot.

    Examples:
      >>> ct.compress_model(model)
      >>> ct.fit(model, images, labels, batch_size=256, epochs=20, checkpoint_dir="run1")
    """
    _keras.require_keras_3("tf_comptrain.fit", "Use model.fit")
    checks.check_model(model)
    checks.check_strategy(model)
    settings = Settings(
        batch_size,
        epochs,
        snapshot_every,
        checkpoint_dir,
        validation_data,
        callbacks,
        verbose,
        min_batch,
        retries,
        on_oom,
    )
    return train(model, settings, lambda: Samples(x, y, sample_weight, shuffle, seed), Process())


def train(
    model: keras.Model, settings: Settings, make_samples: Callable[[], Samples], process: Process
) -> keras.callbacks.History:
    """What `fit` does, in one process or in one of several.

    Args:
      model: Compiled.
      settings: As they were given.
      make_samples: Checks and makes the samples.
      process: Where this runs.
    """
    settings = settings.checked(model)
    samples = make_samples()
    folder: Any = settings.checkpoint_dir
    with folder_lock.held(folder if process.leads else None):
        kept = None if folder is None else process.read(folder)
        batch_size = _first_batch(settings.batch_size, kept, settings.callbacks)
        batches = samples.batches(0, 0, batch_size)
        _keras.build_for_fit(model, batches)
        elastic = ElasticBatch(batch_size, samples.count(0), drop_remainder=False)
        calls = keras_callbacks.callback_list(
            model, settings.callbacks, settings.verbose, settings.epochs, elastic.steps
        )
        run = _FitRun(model, samples, elastic, calls, settings, process)
        try:
            with _keras.fitting(SimpleNamespace(elastic=elastic)):
                return run.train(settings.epochs, kept)
        finally:
            run.divide(run.microbatches_before)


class _FitRun:
    """One call of `fit`. What happens in which order, and nothing of how state is kept."""

    def __init__(
        self,
        model: Any,
        samples: Samples,
        elastic: ElasticBatch,
        callbacks: Any,
        settings: Settings,
        process: Process,
    ):
        self.model = model
        self.samples = samples
        self.elastic = elastic
        self.callbacks = callbacks
        self.settings = settings
        self.process = process
        self.folder: Any = settings.checkpoint_dir
        self.replicas = model.distribute_strategy.num_replicas_in_sync
        self.events: list[TrainingEvent] = []
        self.failures = 0  # at this size, since the snapshot
        self.microbatches_before = accumulation.microbatches_of(model)
        self.microbatches = self.microbatches_before  # of the model's step
        self.ended = False  # by a callback
        self.place = TrainingPosition(0, 0, 0, elastic.size, microbatches=self.microbatches)

    def train(self, epochs: int, kept: tuple[Snapshot, dict] | None) -> keras.callbacks.History:
        self.model.stop_training = False
        keras_callbacks.begin(self.callbacks, goes_on=kept is not None)
        # After on_train_begin: callbacks make variables there.
        self.about: dict[str, Any] = {
            "model": snapshot.signature(self.model),
            "batch_size": self.elastic.first,
            "callbacks": snapshot.attributes(self.callbacks.callbacks),
        }
        start = self.place
        if kept is not None:
            start = self._continue(*kept)
            if not start.begun or start.epoch >= epochs:
                self._put_back()
        logs = None
        if start.stopped or start.epoch >= epochs:
            how = "was ended by a callback" if start.stopped else "is complete"
            self._say(
                f"ct.fit: nothing to do, the training in {self.folder} {how}, after epoch {start.epoch} of {epochs}"
            )
        else:
            for epoch in range(start.epoch, epochs):
                resume = kept is not None and epoch == start.epoch
                logs = self._epoch(epoch, resume)
                if self.ended:
                    break
        return self._finish(logs)

    def _continue(self, found: Snapshot, about: dict) -> TrainingPosition:
        """Takes over a checkpoint; what its training had not changed itself is as this call says."""
        place = found.place
        _check_same(self._about(place), about, self.folder)
        self.events = [TrainingEvent(*event) for event in about["events"]]
        if place.batch == about["batch_size"]:
            place = place._replace(batch=self.elastic.first)
        found = snapshot.with_given(found, about["callbacks"], self.about["callbacks"])
        self.snapshot = found._replace(place=place)
        return place

    def _epoch(self, epoch: int, resume: bool) -> dict:
        self.elastic.samples = self.samples.count(epoch)
        self.model.reset_metrics()
        self.callbacks.on_epoch_begin(epoch)
        if resume:
            if self.snapshot.place.begun:
                self._put_back()
            self._happened(RESUMED, self.place, self.place.batch, "")
        else:
            self._keep(TrainingPosition(epoch, 0, 0, self.elastic.size, microbatches=self.microbatches))
        logs: dict = {}
        while self._left() and not self.ended:
            reason, begun = "", True
            try:
                with remedies.answered():
                    logs = self._steps()
            except tf.errors.ResourceExhaustedError as error:
                reason, begun = _first_line(error), not isinstance(error, StepRefusedError)
                if not self.process.goes_back:
                    raise self._out_of_memory(reason) from None
            if reason:  # outside the handler: its traceback holds tensors of the failed step
                self._recover(reason, begun)
        epoch_logs = _keras.epoch_logs(self.model, logs)
        if self.settings.validation_data is not None:
            epoch_logs.update(self._validate())
        self.callbacks.on_epoch_end(epoch, epoch_logs)
        self.ended = self.process.ends(self.model)
        events = tuple(event for event in self.events if event.epoch == epoch)
        self.model.history.history.setdefault("events", []).append(events)
        return epoch_logs

    def _steps(self) -> dict:
        """Trains from `place` to the end of the epoch, or until a callback resizes the batch or ends the training."""
        left = self._left()
        batches = self.samples.batches(self.place.epoch, self.place.samples, self.place.batch).take(left)
        iterator = iter(distributed(batches, self.model))
        keras_callbacks.show_steps(self.callbacks, self.place.step + left)
        since = 0
        logs: dict = {}
        while left:
            if since >= self.settings.snapshot_every:
                self.ended = self.process.ends(self.model)
                if self.ended:
                    break
                self._keep(self.place)
                since = 0
            step, at_once = self.place.step, min(self.model.steps_per_execution, left)
            self.callbacks.on_train_batch_begin(step)
            logs = self.model.train_function(iterator)
            self.callbacks.on_train_batch_end(step + at_once - 1, logs)
            done = min(self.place.samples + at_once * self.place.batch, self.elastic.samples)
            self.place = self.place._replace(step=step + at_once, samples=done)
            left -= at_once
            since += at_once
            if self.elastic.size != self.place.batch:  # a callback changed it
                self.place = self.place._replace(batch=self.elastic.size)
                break
            if self.process.ends_now(self.model):
                self.ended = True
                break
        return logs

    def _left(self) -> int:
        """Batches of the epoch still to come: each has a sample for every replica."""
        whole, rest = divmod(self.elastic.samples - self.place.samples, self.place.batch)
        return whole + (rest >= self.replicas)

    def divide(self, microbatches: int) -> None:
        """Has the model's step compute a batch in so many parts."""
        if microbatches != self.microbatches:
            self.microbatches = microbatches
            accumulation.set_microbatches(self.model, microbatches)
            self.model.make_train_function()

    def _keep(self, place: TrainingPosition) -> None:
        self.place = place
        self.snapshot = snapshot.take(self.model, self.callbacks.callbacks, place)
        self.failures = 0
        self._write()

    def _write(self) -> None:
        if self.folder is not None and self.process.leads:
            about = {**self._about(self.place), "events": self.events}
            snapshot.write(self.snapshot, self.folder, about)

    def _about(self, place: TrainingPosition) -> dict[str, Any]:
        """What a checkpoint at that place must agree on."""
        epoch = place.epoch if place.begun else max(place.epoch - 1, 0)
        return {**self.about, "data": self.samples.about(epoch)}

    def _put_back(self, after_failure: bool = False) -> None:
        snapshot.restore(self.snapshot, self.model, self.callbacks.callbacks, after_failure)
        self.place = self.snapshot.place
        self.elastic.resize(self.place.batch)
        self.divide(self.place.microbatches)

    def _recover(self, reason: str, begun: bool) -> None:
        """Puts the last snapshot back, and lowers the batch or its parts. No variable is read before that.

        Args:
          reason: Why the step failed.
          begun: Whether it had begun, so that XLA may have taken the memory of variables.
        """
        failed = self.place
        gc.collect()
        self._put_back(after_failure=begun)
        self.failures += 1
        if self.failures > self.settings.retries:
            reason = self._lower(failed, reason)
        self._happened(OUT_OF_MEMORY, failed, self.place.batch, reason)
        if self.place.batch != failed.batch:
            for callback in self.callbacks.callbacks:
                if hasattr(callback, "on_out_of_memory"):
                    callback.on_out_of_memory(failed.epoch, self.place.batch, reason)
        # Of the state just put back, with what the callbacks made of it.
        self.snapshot = snapshot.take(self.model, self.callbacks.callbacks, self.place)
        self._write()

    def _lower(self, failed: TrainingPosition, reason: str) -> str:
        """Halves the microbatches, or the batch; returns the reason, with what is in the way of microbatches."""
        self.failures = 0
        least, parts, obstacle = self.settings.min_batch, failed.microbatches, "not asked for"
        if self.settings.on_oom == "microbatch":
            obstacle = self._obstacle()
            reason = f"{reason} (no microbatches: {obstacle})" if obstacle else reason
            parts = parts if obstacle else min(2 * parts, failed.batch // least)
        batch = max(failed.batch // 2, least * parts) if obstacle else failed.batch
        if (batch, parts) == (failed.batch, failed.microbatches):
            of = "microbatches of" if parts > 1 else "batch size"
            self.divide(1)  # what is held is that of a step of so many samples
            held = self._held(batch // parts)
            raise tf.errors.ResourceExhaustedError(
                None,
                None,
                f"Out of memory at {of} {batch // parts}, and `min_batch` is {least}. The model is as it was at epoch "
                f"{failed.epoch + 1}, step {self.place.step}. {reason}\n{held}".rstrip(),
            )
        self.elastic.resize(batch)
        self.divide(parts)
        self.place = self.place._replace(batch=batch, microbatches=parts)
        return reason

    def _held(self, samples: int) -> str:
        """What a step of so many holds; "" where that cannot be said."""

        def batch(count: int) -> tuple[Any, Any]:
            (first,) = self.samples.batches(self.place.epoch, 0, count).take(1)
            return keras.utils.unpack_x_y_sample_weight(first)[:2]

        return remedies.out_of_memory(self.model, batch, samples)

    def _obstacle(self) -> str:
        return "several replicas" if self.replicas > 1 else accumulation.obstacle(self.model)

    def _validate(self) -> dict:
        data = self.settings.validation_data
        sized = not isinstance(data, tf.data.Dataset)
        if self.process.goes_back:
            before = snapshot.take(self.model, self.callbacks.callbacks, self.place)
        batch = self.place.batch
        while True:
            reason = ""
            try:
                logs = self.process.evaluate(self.model, data, batch, self.callbacks)
            except tf.errors.ResourceExhaustedError as error:
                reason = _first_line(error)
                if not self.process.goes_back:
                    raise self._out_of_memory(reason) from None
            if not reason:
                return {f"val_{name}": value for name, value in logs.items()}
            gc.collect()
            snapshot.restore(before, self.model, self.callbacks.callbacks, after_failure=True)
            if not sized or batch == 1:
                raise tf.errors.ResourceExhaustedError(
                    None,
                    None,
                    f"Out of memory in validation; `validation_data` needs smaller batches. {reason}",
                )
            self._happened(OUT_OF_MEMORY_IN_VALIDATION, self.place, batch // 2, reason)
            batch //= 2

    def _out_of_memory(self, reason: str) -> tf.errors.ResourceExhaustedError:
        """Where the other workers are in the middle of the step: none can go back alone."""
        return tf.errors.ResourceExhaustedError(
            None,
            None,
            f"Out of memory at batch size {self.place.batch} over {self.replicas} replicas, in epoch "
            f"{self.place.epoch + 1}, step {self.place.step}. Start again with a smaller `batch_size`: with "
            f"`checkpoint_dir` training goes on from the last snapshot. {reason}",
        )

    def _finish(self, logs: dict | None) -> keras.callbacks.History:
        if logs is not None:
            end = TrainingPosition(
                self.place.epoch + 1, 0, 0, self.elastic.size, False, self.ended, self.microbatches
            )
            self._keep(end)
        self.model.optimizer.finalize_variable_values(self.model.trainable_weights)
        self.callbacks.on_train_end(logs)
        return self.model.history

    def _happened(self, kind: str, failed: TrainingPosition, batch: int, reason: str) -> None:
        at, parts = (failed.epoch, failed.step, self.place.step), self.place.microbatches
        event = TrainingEvent(kind, *at, failed.batch, batch, reason, parts)
        self.events.append(event)
        self._say(event.line(self.folder))

    def _say(self, line: str) -> None:
        if self.settings.verbose:
            print(f"\n{line}" if self.settings.verbose == 1 else line, flush=True)
        else:
            logging.info("%s", line)


def _first_batch(batch_size: int, kept: tuple[Snapshot, dict] | None, callbacks: Any) -> int:
    """The batch size that the training begins with, or began with where it, or a callback, steers that since."""
    if kept is None:
        return batch_size
    given = getattr(callbacks, "callbacks", callbacks)
    steered = any(hasattr(callback, "on_out_of_memory") for callback in tf.nest.flatten(given))
    began = kept[1]["batch_size"]
    return began if steered or kept[0].place.batch != began else batch_size


def _check_same(ours: dict, theirs: dict, folder: Path | None) -> None:
    hint = f"Choose another `checkpoint_dir`, or remove {folder} to begin anew."
    for what, value in ours["data"].items():
        if theirs["data"].get(what) != value:
            raise ValueError(
                f"The checkpoint in {folder} is of a training on other data: {what} is "
                f"{theirs['data'].get(what)!r} there, {value!r} here. {hint}"
            )
    for what, value in ours["model"].items():
        other = theirs["model"].get(what)
        if other != value:
            if isinstance(value, list) and isinstance(other, list):
                pairs = [pair for pair in zip(other, value) if pair[0] != pair[1]]
                other, value = pairs[0] if pairs else (f"{len(other)} {what}", f"{len(value)} {what}")
            raise ValueError(
                f"The checkpoint in {folder} is of another model or another call: {what}: {other!r} there, "
                f"{value!r} here. {hint}"
            )


def _first_line(error: tf.errors.OpError) -> str:
    """The line that says what there was no memory for; graph errors put others before it."""
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    telling = [line for line in lines if "memory" in line.lower() or "OOM" in line]
    return (telling or lines or [type(error).__name__])[0]
