"""Error bounds that follow the gradients while a model trains."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow import keras

from tf_comptrain import _keras, arguments, codecs, theory
from tf_comptrain.callbacks import _bounds_state
from tf_comptrain.callbacks._bounds_state import BoundsState, Checkpointed
from tf_comptrain.callbacks._momentum import accumulated_gradient
from tf_comptrain.compression.instrumentation import Instrumentation, instrumentation
from tf_comptrain.compression.law_check import LawCheck, check_error_law

if TYPE_CHECKING:
    from tf_comptrain.storage import LawSite, Site

_TOLERANCES = {"momentum": 0.01, "gradient": 0.2}
# What stands in for a momentum that is not there: the one that this gradient alone would build up.
_USUAL_MOMENTUM = 0.9
# Largest bound of a batch normalization's input / that of others. A bound is for the tensor, and what a
# normalization makes of an error is relative to the channel, some of which are much quieter than the tensor.
_NORM_LIMIT = 0.5
_OUT_OF_DATE = 0.1  # share of the bytes of XLA's streams from which on a step is compiled anew


class Statistics(NamedTuple):
    """What one collecting step tells of a layer, free of the loss scale and for all replicas.

    Attributes:
      elements: Of the stored input.
      nonzero_ratio: R of the stored input.
      sigma: Running standard deviation of the input.
      sum_sq: Sum of dy^2 behind one weight gradient.
      gradient_rms: Root mean square of the weight gradient.
      gradient_mean_abs: Mean magnitude of the weight gradient.
      momentum: Mean |M|, M the accumulated gradient; 0 where the optimizer keeps none.
      stream_bytes: Of the stored input.
      widened: Share of its groups of values with a larger bound (under XLA).
    """

    elements: float
    nonzero_ratio: float
    sigma: float
    sum_sq: float
    gradient_rms: float
    gradient_mean_abs: float
    momentum: float
    stream_bytes: float
    widened: float


class BoundUpdate(NamedTuple):
    """One layer's bound after one collecting step: an element of `AdaptiveErrorBound.updates`.

    Attributes:
      step: Training steps before it took effect.
      layer: Path of the layer; for a tensor of the traced step "operation -> weight".
      bound: Error bound of the layer's input, or of that tensor, in units of x.
      bound_over_sigma: The same over the running standard deviation of x.
      target_sigma: Standard deviation that the weight-gradient error was meant to have.
      predicted_sigma: The one it has with `bound`: smoothing and limits included.
      source: What set the target: "momentum" or "gradient".
      stream_bytes: Size of the stored input, at the bound before.
      widened: Share of its groups of values with a larger bound (under XLA).
    """

    step: int
    layer: str
    bound: float
    bound_over_sigma: float
    target_sigma: float
    predicted_sigma: float
    source: str
    stream_bytes: float
    widened: float


def target_of(statistics: Statistics, target: str, tolerance: float) -> tuple[float, str]:
    """(sigma, source) the weight-gradient error should have."""
    if target == "gradient":
        return tolerance * statistics.gradient_rms, "gradient"
    if statistics.momentum > 0:
        return theory.momentum_target(statistics.momentum, tolerance), "momentum"
    stand_in = statistics.gradient_mean_abs / (1.0 - _USUAL_MOMENTUM)
    return theory.momentum_target(stand_in, tolerance), "gradient"


class AdaptiveErrorBound(keras.callbacks.Callback):
    """Sets each layer's error bound so that compression stays a small part of its weight gradient.

    At the end of every collecting step, for each convolution, dense layer and batch normalization whose
    input is held compressed, and for each tensor of the traced step that a weight's gradient is a product of,

        eb = sqrt(3) * sigma / sqrt(R * S),    S = mean over output channels k of sum dy_k^2,

    where R is the non-zero ratio of the input and sigma the error that the weight gradient may
    have; for a batch normalization that of gamma, with dy_k over the channel's standard deviation in S. By
    target:

        "gradient":  sigma = its tolerance * root mean square of the weight gradient  (AC-GC)
        "momentum":  sigma = tolerance * mean |M|,  M_t = g_t + mu M_(t-1)     (COMET)

    The gradients of a step share one budget: the root mean square of their relative errors is `tolerance`, and each has
    the part of it at which all streams together are smallest, more for a larger tensor (`theory.shared_tolerance`).
    COMET's target is the same for each.

    The sampling noise of a minibatch is about as large as its gradient for most of training: an error of
    0.2 adds about 4% to that variance. COMET's 0.01 of the momentum is several times tighter in practice.

    M is read from the optimizer: SGD's momentum, or Adam's first moment, brought to this scale.
    Where there is none (plain SGD, the first step) mean |g| / (1 - 0.9) stands in.

    Bounds are variables: changing them retraces nothing. The train function is traced once more when
    training begins with this callback for the first time. Gradients are reduced on collecting steps only.

    Under XLA, where the bits of a value are part of the compiled step, it is compiled anew at the end of an epoch
    whose bounds would make a tenth of the streams' bytes more or less: after epochs 1, 2, 4, 8, ... at most.

    Steered are tensors of the traced step of which, with dy, the gradient of a trainable weight of the model is a
    product (MatMul, BatchMatMul, Einsum, the filter gradient of a convolution), and inputs of batch normalizations.
    S is a mean over the elements of that gradient. A tensor that serves several weights gets the tightest bound that
    they want. Where an error of it travels on as well, it keeps the bound of `compress_model` unless a weight needs
    a tighter one; tensors that a product's factor is rebuilt from always keep it. Of `Compress` wrappers the inputs of
    convolutions and dense layers are steered, whose activation is none or a ReLU.

    A bound given to `compress_model` holds until the first collecting step, of each training anew. After training
    the bounds stay where they are, also in a `fit` without this callback.

    Args:
      interval: Steps from one collecting step to the next.
      target: "gradient" or "momentum".
      tolerance: Error / gradient, root mean square over the layers, or error / momentum. Default: 0.2 for "gradient",
        0.01 for "momentum".
      warmup: Steps before the first collecting step, with the bounds of `compress_model`.
      smoothing: Weight of the past in [0, 1): bounds are averaged geometrically over updates.
      limits: Smallest and largest bound / running standard deviation of the input. Above about 0.5
        the error follows the data, and the law predicts too little. For batch normalization the
        largest is half as large, for the sake of channels that are quieter than the tensor.
      check_data: (x, y), one small batch: the law is checked on it after each collecting step
        (`check_error_law`: one step, batch normalization too). Where it promises too little, the bound is lowered by as
        much. On one device.
      log_dir: Folder for TensorBoard: bound, stream bytes, and sigma as predicted and, with
        `check_data`, as measured, and compression, of every layer at every collecting step.
      backup_dir: Folder that keeps the state of this callback from epoch to epoch, and from which a
        training that was interrupted goes on: what keras.callbacks.BackupAndRestore does not know
        of. Removed when training ends.
      verbose: 1: prints a line for each update.

    Attributes:
      updates: Every `BoundUpdate` of the last training, in order.
      checks: (step, `LawCheck`) of every check, in order.
      skipped: Steps whose gradients were not finite (an overflow of mixed precision), by layer.
      state: For tf.train.Checkpoint(model=model, bounds=callback.state); what is restored takes
        effect when training begins.

    History gets "bound_over_sigma", the geometric mean over the layers, and at the end of training
    "error_bounds": for each epoch the tuple of its `BoundUpdate`s.

    Raises:
      ValueError: A bad argument. In `fit`: the model is not compressed, the restored state is of
        another model, or `check_data` under a strategy of several replicas.

    Examples:
      >>> ct.compress_model(model)
      >>> model.compile("adam", "sparse_categorical_crossentropy")
      >>> model.fit(dataset, callbacks=[ct.AdaptiveErrorBound()])

    Reference:
      COMET (Jin et al., VLDB 2022); AC-GC (Evans and Aamodt, NeurIPS 2021). Known weakness: see
      `tf_comptrain.theory`; a layer called several times in a step is judged by its last call.
    """

    def __init__(
        self,
        interval: int = 200,
        target: str = "gradient",
        tolerance: float | None = None,
        warmup: int = 20,
        smoothing: float = 0.5,
        limits: tuple[float, float] = (0.01, 0.5),
        check_data: tuple[Any, Any] | None = None,
        log_dir: str | Path | None = None,
        backup_dir: str | Path | None = None,
        verbose: int = 0,
    ):
        super().__init__()
        if target not in _TOLERANCES:
            raise ValueError(f"`target` must be 'momentum' or 'gradient'. Received: {target!r}.")
        self.interval = arguments.whole("interval", interval)
        self.target = target
        self.tolerance = arguments.real(
            "tolerance", _TOLERANCES[target] if tolerance is None else tolerance, above=0
        )
        self.warmup = arguments.whole("warmup", warmup, least=0)
        self.smoothing = arguments.real("smoothing", smoothing, least=0, below=1)
        self.limits = _checked_limits(limits)
        self.check_data = _checked_batch(check_data)
        self.log_dir = log_dir
        self.backup_dir = None if backup_dir is None else Path(backup_dir)
        self.verbose = verbose
        self.updates: list[BoundUpdate] = []
        self.checks: list[tuple[int, LawCheck]] = []
        self.skipped: dict[str, int] = {}
        self._begun = False
        self.state = Checkpointed(lambda: self._state() if self._begun else None)
        self._epochs: list[tuple[BoundUpdate, ...]] = []
        self._steps = 0
        self._next = warmup
        self._collecting = False
        self._loss_scale = 1.0
        self._error: tuple[float, float] | None = None  # and the factor on all bounds then
        self._wanted: dict[str, float] = {}  # layer -> the bound it wants for itself
        self._correction: dict[str, float] = {}  # layer -> error as measured / as the law has it, 1 or more

    @property
    def gradient_error(self) -> float | None:
        """Root mean square over the layers of error / gradient by the law, at the bounds as they are.

        None before the first collecting step.
        """
        if self._error is None:
            return None
        error, scale = self._error
        return error * self._handle.bound_scale / scale

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._handle: Instrumentation = instrumentation(self.model)
        self._restored()  # which refuses that of another model before anything is changed
        self._begun = True
        self._handle.collect_statistics(self.model)
        self._handle.reset_bounds()
        self._collect(False)
        self._steps, self._next = 0, self.warmup
        self._wanted, self._correction, self.skipped = {}, {}, {}
        self.updates, self.checks, self._epochs, self._error = [], [], [], None
        self._writer = None if self.log_dir is None else tf.summary.create_file_writer(str(self.log_dir))
        if self.check_data is not None and self.model.distribute_strategy.num_replicas_in_sync > 1:
            raise ValueError(
                "`check_data` needs a model on one device. Received a model of "
                f"{self.model.distribute_strategy.num_replicas_in_sync} replicas: leave it out."
            )
        if obstacle := self._handle.report.obstacle:
            logging.warning("AdaptiveErrorBound has no effect: the model runs as plain Keras (%s).", obstacle)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        # Not in on_train_begin: there other callbacks may still return bounds to where they were.
        first = not self._epochs and self._steps == 0
        restored = self._restored() if first or self.state.restored is not None else None
        self.state.restored = None
        if restored is not None:
            _bounds_state.put_codec_states(self._handle, restored)
            self._steps, self._next = restored.steps, restored.next
            self._wanted, self._correction = dict(restored.wanted), dict(restored.correction)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._first = batch
        if self._steps >= self._next:
            self._next = self._steps + self.interval
            self._loss_scale = _keras.loss_scale(self.model.optimizer)
            self._collect(True)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._steps += batch - self._first + 1  # several with steps_per_execution
        if self._collecting:
            self._collect(False)
            self._update()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        latest = {update.layer: update.bound_over_sigma for update in self.updates}
        if logs is not None and latest:
            logs["bound_over_sigma"] = math.exp(sum(map(math.log, latest.values())) / len(latest))
        self._epochs.append(tuple(self.updates[sum(map(len, self._epochs)) :]))
        if epoch + 1 < (self.params or {}).get("epochs", math.inf):
            self._trace_with_the_bounds()
        if self.backup_dir is not None:
            _bounds_state.write(self._state(), self.backup_dir)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._writer is not None:
            self._writer.close()
        if self.backup_dir is not None:
            _bounds_state.remove(self.backup_dir)
        if self._epochs:
            self.model.history.history["error_bounds"] = list(self._epochs)
        if self._steps and not self._handle.sites() and not self._handle.report.obstacle:
            logging.warning("AdaptiveErrorBound has had no effect: the step holds nothing that has a bound.")

    def _state(self) -> BoundsState:
        steered = self._steps, self._next, self._wanted, self._correction
        states = _bounds_state.codec_states(self._handle)
        return BoundsState(*steered, *states, _keras.weight_names(self.model))

    def _restored(self) -> BoundsState | None:
        """The state to go on from, with this model's names; None where there is none."""
        found, argument = self.state.restored, "state"
        if found is None and self.backup_dir is not None:
            found, argument = _bounds_state.read(self.backup_dir), "backup_dir"
        if found is None:
            return None
        return _bounds_state.for_model(found, self._handle, _keras.weight_names(self.model), argument)

    def _collect(self, on: bool) -> None:
        assert self._handle.collecting is not None  # made by collect_statistics
        self._collecting = on
        self._handle.collecting.assign(on)

    def _trace_with_the_bounds(self) -> None:
        """Under XLA, has the next step traced with bits for the bounds of now."""
        epochs = len(self._epochs)
        is_due = epochs & (epochs - 1) == 0  # compiling may take as long as an epoch
        if is_due and self._handle.bytes_out_of_date() > _OUT_OF_DATE:
            _keras.forget_traces(self.model)

    def _update(self) -> None:
        self._laws = self._handle.law_sites()
        names = [law.name for law in self._laws]  # a restored training's may have other numbers
        self._wanted = _bounds_state.for_names(self._wanted, names)
        self._correction = _bounds_state.for_names(self._correction, names)
        read = [(law, self._read(law)) for law in self._laws]
        usable = [(law, statistics) for law, statistics in read if statistics is not None]
        found = {}
        for (law, statistics), tolerance in zip(usable, self._tolerances(usable)):
            target_sigma, source = target_of(statistics, self.target, tolerance)
            if target_sigma > 0:
                found[law.name] = (law, statistics, target_sigma, source)
                self._wanted[law.name] = self._bound(law, statistics, target_sigma)
        bounds = self._set_bounds()
        errors = []
        for name, (law, statistics, target_sigma, source) in found.items():
            bound = bounds[id(law.site)]
            predicted = theory.weight_gradient_sigma(bound, statistics.nonzero_ratio, statistics.sum_sq)
            if statistics.gradient_rms > 0:
                errors.append(float(predicted) * self._correction.get(name, 1.0) / statistics.gradient_rms)
            self.updates.append(
                BoundUpdate(
                    self._steps,
                    name,
                    bound,
                    bound / statistics.sigma,
                    target_sigma,
                    float(predicted) * self._correction.get(name, 1.0),
                    source,
                    statistics.stream_bytes,
                    statistics.widened,
                )
            )
        if errors:
            mean_square = sum(error**2 for error in errors) / len(errors)
            self._error = math.sqrt(mean_square), self._handle.bound_scale
        checks = self._check() if found else []
        if self._writer is not None:
            self._log(self._writer, self.updates[len(self.updates) - len(found) :], checks)
        if self.verbose and found:
            bounds_text = ", ".join(
                f"{u.layer} {u.bound_over_sigma:.3f}" for u in self.updates[-len(found) :]
            )
            print(f"\nAdaptiveErrorBound, step {self._steps}: bound / sigma {bounds_text}")

    def _tolerances(self, usable: Sequence[tuple[LawSite, Statistics]]) -> list[float]:
        """Error / gradient, or error / momentum, of each."""
        if self.target == "momentum":
            return [self.tolerance] * len(usable)
        readers = collections.Counter(id(law.site) for law, _ in usable)
        elements, largest = [], []
        for law, found in usable:
            # What a tensor takes is bought once, for all gradients that are made of it.
            elements.append(found.elements * found.nonzero_ratio / readers[id(law.site)])
            bound = self._limits(law, found)[1] * self._correction.get(law.name, 1.0)
            error = float(theory.weight_gradient_sigma(bound, found.nonzero_ratio, found.sum_sq))
            largest.append(error / found.gradient_rms if found.gradient_rms > 0 else 0.0)
        return list(map(float, theory.shared_tolerance(elements, self.tolerance, largest)))

    def _check(self) -> list[LawCheck]:
        """Compares prediction and measurement; what it finds corrects the next bounds."""
        if self.check_data is None:
            return []
        checks = check_error_law(self.model, *self.check_data)
        self.checks += [(self._steps, check) for check in checks]
        for check in checks:
            if math.isfinite(check.ratio) and check.gradient != "input":
                before = self._correction.get(check.layer, 0.0)
                self._correction[check.layer] = theory.smoothed(before, max(check.ratio, 1.0), self.smoothing)
        return checks

    def _log(self, writer: Any, updates: Iterable[BoundUpdate], checks: Iterable[LawCheck]) -> None:
        with writer.as_default(step=self._steps), tf.summary.record_if(True):
            for update in updates:
                values = update._asdict()
                for what in values.keys() - {"step", "layer", "source"}:
                    _scalar(f"{update.layer}/{what}", values[what])
                _scalar(f"{update.layer}/overflows", self.skipped.get(update.layer, 0))
            for check in checks:
                name = check.layer if check.gradient == "kernel" else f"{check.layer}/{check.gradient}"
                _scalar(f"{name}/check_predicted_sigma", check.predicted_sigma)
                _scalar(f"{name}/check_measured_sigma", check.measured_sigma)
                _scalar(f"{name}/compression", check.compression)

    def _bound(self, law: LawSite, statistics: Statistics, target_sigma: float) -> float:
        """This layer's own bound: from the law, smoothed, within the limits."""
        smallest, largest = self._limits(law, statistics)
        new = float(theory.bound_for_sigma(target_sigma, statistics.nonzero_ratio, statistics.sum_sq))
        new /= self._correction.get(law.name, 1.0)
        new = min(max(new, smallest), largest)
        smooth = theory.smoothed(self._wanted.get(law.name, 0.0), new, self.smoothing)
        return min(max(smooth, smallest), largest)

    def _limits(self, law: LawSite, statistics: Statistics) -> tuple[float, float]:
        """Smallest and largest bound, in units of x."""
        smallest, largest = (limit * statistics.sigma for limit in self.limits)
        if law.site.kind == "norm":
            largest = max(_NORM_LIMIT * largest, smallest)
        return smallest, largest

    def _set_bounds(self) -> dict[int, float]:
        """Sets each stream's bound to the tightest that its readers want; by id of its site."""
        wanted: dict[int, tuple[Site, float]] = {}
        for law in self._laws:
            if law.name in self._wanted:
                holder = law.site
                _, tightest = wanted.get(id(holder), (holder, self._own_bound(holder)))
                wanted[id(holder)] = (holder, min(tightest, self._wanted[law.name]))
        bounds = {}
        for key, (holder, bound) in wanted.items():
            base = min(max(bound, codecs.SMALLEST_BOUND), codecs.LARGEST_BOUND)
            bounds[key] = holder.set_bound(base)
        return bounds

    def _own_bound(self, holder: Site) -> float:
        """The largest bound of a stream for the sake of those of its readers that the law does not rule."""
        laws = [law for law in self._laws if law.name in self._wanted and law.site is holder]
        return math.inf if all(law.alone for law in laws) else holder.own_bound()

    def _read(self, law: LawSite) -> Statistics | None:
        """The layer's statistics; None where it did not train, or a gradient overflowed or vanished."""
        holder = law.site.read_state()
        sums, _, bad_dy, weight_sums, weight_mean, bad_dw, elements = map(float, law.statistics.numpy())
        if (weight := law.weight) is None:  # frozen since
            return None
        if bad_dy or bad_dw or not (math.isfinite(sums) and math.isfinite(weight_sums)):
            self.skipped[law.name] = self.skipped.get(law.name, 0) + 1
            return None
        if not (sums > 0 and holder.nonzero_ratio > 0 and holder.running_sigma > 0):
            return None
        # Each replica's statistics are of its part of the batch, and reading averages them: errors
        # and gradients add up over replicas, gradients at least as errors do.
        replicas = self.model.distribute_strategy.num_replicas_in_sync
        channels = weight.shape[-1]
        return Statistics(
            elements=elements,
            nonzero_ratio=holder.nonzero_ratio,
            sigma=holder.running_sigma,
            sum_sq=replicas * law.share * sums / self._loss_scale**2,
            gradient_rms=math.sqrt(replicas * weight_sums * channels / math.prod(weight.shape))
            / self._loss_scale,
            gradient_mean_abs=math.sqrt(replicas) * weight_mean / self._loss_scale,
            momentum=self._momentum(weight),
            stream_bytes=holder.stream_bytes,
            widened=holder.widened,
        )

    def _momentum(self, weight: tf.Variable) -> float:
        found = None
        if self.target == "momentum":
            found = accumulated_gradient(self.model.optimizer, weight)
        if found is None:
            return 0.0
        slot, factor = found
        return factor * float(tf.reduce_mean(tf.abs(tf.cast(tf.convert_to_tensor(slot), tf.float32))))


def _scalar(tag: str, value: float) -> None:
    """What tf.summary.scalar does, which needs TensorBoard to be installed."""
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = "scalars"
    tf.summary.write(tag, tf.constant(value, tf.float32), metadata=metadata)


def _checked_limits(limits: Any) -> tuple[float, float]:
    is_pair = isinstance(limits, (tuple, list, np.ndarray)) and len(limits) == 2
    if not (is_pair and all(map(arguments.is_real, limits)) and 0 < limits[0] <= limits[1] < math.inf):
        raise ValueError(
            "`limits` must be (smallest, largest) bound over standard deviation, "
            f"0 < smallest <= largest. Received: {limits!r} (of type {type(limits).__name__})."
        )
    return float(limits[0]), float(limits[1])


def _checked_batch(data: Any) -> Any:
    if data is not None and not (isinstance(data, (tuple, list)) and len(data) == 2):
        raise ValueError(f"`check_data` must be (x, y), one batch, or None. Received: {type(data).__name__}.")
    return None if data is None else tf.nest.map_structure(tf.convert_to_tensor, data)
