"""The gradients of a compressed model beside those of plain Keras, looked at while it trains."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.codecs import SMALLEST_BOUND
from tf_comptrain.compression.instrumentation import Instrumentation, compressed_models
from tf_comptrain.compression.law_check import LawCheck, law_checks, numbers_of
from tf_comptrain.graph import LawError
from tf_comptrain.storage import Site, state_unknown_to_keras

_EVERY = 1000  # steps
# Plain gradients hold about four times what compressed ones do: with a quarter of the batch, no more than the step.
_SAMPLES, _SHARE = 8, 4
# Statistics of fewer samples leave a batch normalization's input hardly a gradient.
_SAMPLES_OF_STATISTICS = 4
_FACTOR = 3.0  # error / what the law promises
# Of the gradient. What the law promises at least: errors of other tensors travel here, of which it does not speak.
_TRAVELS = 0.1
# A gradient's norm / that of all. What is smaller is the noise of rounding, such as that of a bias before a
# batch normalization.
_NOISE = 1e-3
_COMPARED = 1 << 16  # elements of a gradient: the error of its error is below 1 %
# How often a bound is divided, and by what. XLA compiles each of them.
_DIVISIONS, _DIVISIONS_UNDER_XLA = (12, 2), (4, 8)
_SAYS = (
    "%s: at step %d the gradient of %s is off by %.0f %% with compressed activations, on %d samples; the law of error "
    "bounds promises %.0f %%. %s tf_comptrain.compress_model(model, check=False) does not look."
)
_MENDED = "The bounds of %d tensors (%s) are lowered, the first to 1/%d: it is %.0f %% now."
_NOT_MENDED = "Lower bounds do not change that: report it, and hold what the layer reads with storage='keep'."


class GradientError(NamedTuple):
    """The gradient of one weight with compressed activations, against plain Keras'.

    Attributes:
      weight: Its path.
      error: Root mean square of the difference / of the gradient.
      promised: The same by the error-bound law, at least what travels to it from other tensors.
    """

    weight: str
    error: float
    promised: float

    @property
    def is_wrong(self) -> bool:
        """Whether it is off by more than the law's promise allows, or by more than itself."""
        return self.error > min(_FACTOR * self.promised, 1.0)


class _Traced(NamedTuple):
    """The gradients of a slice, traced.

    Attributes:
      key: What it was traced for.
      plain: Returns of each gradient sampled elements and the norm; None where it is None.
      compressed: Returns the same, and what `law_checks` reads.
      laws: Of the compressed one.
      order: Names of its sites, in the order of the forward pass.
    """

    key: Any
    plain: Callable
    compressed: Callable
    laws: list[LawError]
    order: list[str]


class FirstStepCheck:
    """Compares gradients on a slice of a batch, every 1,000 steps.

    Where one is off by more than three times what the law promises it says so once, and halves the bounds of
    tensors from that layer on until it is not.

    Args:
      model: A compressed model, which is not kept alive.
      at_once: Before the first step too. The first look takes seconds, which are less than 1 % of some thousand steps.
    """

    def __init__(self, model: keras.Model, at_once: bool):
        self._first = 0 if at_once else 1
        self._model = weakref.ref(model)
        self._handle: Instrumentation = compressed_models[model]
        self._next: int | None = None
        self._steps = 0
        self._said: set[str] = set()
        self._traced: _Traced | None = None
        self._hopeless: set[str] = set()  # weights that no bound mends
        self._own: dict[str, float] = {}  # bases before the check, by site
        self._lowered: dict[str, float] = {}  # by this one

    def begin(self) -> None:
        """Stands before the train function, from the next one on."""
        model = self._model()
        if model is not None:
            _keras.around_runs(model, "check", self._run)

    def _run(self, train_function: Callable, iterator: Any) -> Any:
        """One run of the train function, and the check before it where that is due."""
        model: Any = self._model()
        steps = _keras.steps_at_once(model)
        if self._next is None:  # of a training that goes on, what was looked at is not looked at again
            self._steps = _keras.steps_of(model.optimizer)
            self._next = _EVERY * max(math.ceil(self._steps / _EVERY), self._first)
        due = self._steps >= self._next and isinstance(iterator, tf.data.Iterator)
        if due:
            self._next += _EVERY * math.ceil((self._steps - self._next + 1) / _EVERY)
            why = self._handle.report.obstacle or _obstacle(model)
            why = why or _why_not_sliced(iterator.element_spec)
            if why is None:
                batches, iterator = _peeked(iterator, steps)
                if batches:
                    why = self._look(model, batches[0])
            self._handle.report.unchecked = why
            if not model.train_function:  # it was dropped
                return model.train_function(iterator)
        self._steps += steps
        return train_function(iterator)

    def _look(self, model: keras.Model, batch: Any) -> str | None:
        """Why the model's gradients cannot be looked at; None where they were."""
        sizes = {tensor.shape[0] for tensor in tf.nest.flatten(batch)}
        if len(sizes) > 1:
            return "inputs of different batch sizes"
        size = sizes.pop()
        count = min(_SAMPLES, size // _SHARE)
        if count < 1:
            return f"a batch of fewer than {_SHARE} samples"
        if count < _SAMPLES_OF_STATISTICS and _has_batch_statistics(model):
            return f"batch statistics, and fewer than {_SHARE * _SAMPLES_OF_STATISTICS} samples"
        try:
            self._compare(model, tf.nest.map_structure(lambda tensor: tensor[:count], batch), count)
        except Exception as error:  # never the training's
            return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return None

    def _compare(self, model: keras.Model, data: Any, count: int) -> None:
        plain = self._trace(model, data).plain(*tf.nest.flatten(data))
        self._own, self._lowered = self._handle.bases(), {}
        errors, bases = self._errors(model, data, plain)
        while wrong := [e for e in errors if e.is_wrong and e.weight not in self._hopeless]:
            # What is wrong here makes the gradients of all layers before wrong.
            first, before = wrong[-1], dict(self._lowered)
            errors, what = self._mend(model, data, plain, first, bases)
            if not what:
                self._hopeless.add(first.weight)
                self._undo(before)
                errors, _ = self._errors(model, data, plain)
            self._say(model, first, count, what or _NOT_MENDED)
        if self._lowered and _keras.jit_compile(model):  # where a bound is part of the trace
            _keras.forget_traces(model)

    def _say(self, model: keras.Model, wrong: GradientError, count: int, what: str) -> None:
        if wrong.weight in self._said:
            return
        self._said.add(wrong.weight)
        promised = 100 * wrong.promised
        logging.warning(
            _SAYS, model.name, self._steps, wrong.weight, 100 * wrong.error, count, promised, what
        )

    def _mend(
        self, model: keras.Model, data: Any, plain: list, wrong: GradientError, bases: dict[str, float]
    ) -> tuple[list[GradientError], str]:
        """Lowers bounds: of what the gradient is made of, and in each round of twice as many sites behind it.

        Returns:
          The errors then, and what was done; "" where it does not help.
        """
        chain, own = self._chain(model, wrong.weight)
        errors: list[GradientError] = []
        rounds, divisor = _DIVISIONS_UNDER_XLA if _keras.jit_compile(model) else _DIVISIONS
        for k in range(rounds):
            window = chain[: own + 2**k - 1]
            for name in window:
                lower = self._lowered.get(name, bases[name]) / divisor
                if lower > SMALLEST_BOUND:
                    self._lowered[name] = lower
            errors, _ = self._errors(model, data, plain)
            now = next((e for e in errors if e.weight == wrong.weight), None)
            if now is None or not now.is_wrong:
                names = ", ".join(window[:3]) + (", ..." if len(window) > 3 else "")
                error = 0.0 if now is None else 100 * now.error
                return errors, _MENDED % (len(window), names, divisor ** (k + 1), error)
        return errors, ""

    def _undo(self, before: dict[str, float]) -> None:
        """Returns to the bounds that were lowered before."""
        sites = self._handle.sites()
        for name in self._lowered.keys() - before.keys():
            sites[name].set_bound(self._own.get(name, 0.0))
        self._lowered = before

    def _chain(self, model: keras.Model, weight: str) -> tuple[list[str], int]:
        """Sites whose errors may be in a gradient, the nearest first; how many of them it is made of."""
        traced: Any = self._traced
        of_laws = collections.defaultdict(list)
        for law in traced.laws:
            site, _, path = law.name.rpartition(" -> ")
            of_laws[path].append(site)
        own = of_laws[weight] + [
            site.name
            for layer, instrument in self._handle.wrapped.items()
            for site in instrument.sites.values()
            if weight in [v.path for v in getattr(layer, "weights", ())]
        ]
        # One of which the law does not speak lies where the next weight does.
        paths = [v.path for v in model.trainable_variables]
        nearest = own or next((of_laws[path] for path in paths[paths.index(weight) :] if of_laws[path]), [])
        known = [traced.order.index(name) for name in nearest if name in traced.order]
        begin = min(known, default=0)
        behind = traced.order[begin:] + traced.order[:begin][::-1]
        return list(dict.fromkeys(own + behind)), max(len(own), 1)

    def _trace(self, model: keras.Model, data: Any) -> _Traced:
        """The traced gradients of data like these; anew where XLA has the bounds in the trace."""
        flat = tf.nest.flatten(data)
        # Of any batch size, where XLA need not know it: what is small enough to be kept is not the slice's to say.
        size = flat[0].shape[0] if _keras.jit_compile(model) else None
        specs = [tf.TensorSpec([size, *tensor.shape[1:]], tensor.dtype) for tensor in flat]
        key = (model.train_function, specs, dict(self._lowered) if _keras.jit_compile(model) else None)
        if self._traced is None or self._traced.key != key:
            self._traced = self._trace_anew(model, data, specs, key)
        return self._traced

    def _trace_anew(self, model: keras.Model, data: Any, specs: list, key: Any) -> _Traced:
        held: Any = self._handle.held
        # Both by the engine of the step: random numbers of XLA are others than those of the executor.
        compiled = functools.partial(tf.function, autograph=False, jit_compile=_keras.jit_compile(model))

        def plain(*flat: tf.Tensor) -> list:
            with _keras.plain_scope():
                return _sampled(_keras.loss_gradients(model, tf.nest.pack_sequence_as(data, flat)))

        def compressed(*flat: tf.Tensor) -> tuple[list, list]:
            with _keras.training_scope():
                found = _sampled(_keras.loss_gradients(model, tf.nest.pack_sequence_as(data, flat)))
            return found, numbers_of(laws)

        with _keras.own_trace():
            with held.checked() as laws:
                traced = compiled(compressed).get_concrete_function(*specs)
                order = [crossing.name for crossing in held.crossings if crossing.name in held.sites]
            return _Traced(key, compiled(plain).get_concrete_function(*specs), traced, laws, order)

    def _errors(
        self, model: keras.Model, data: Any, plain: list
    ) -> tuple[list[GradientError], dict[str, float]]:
        """Of all gradients above noise, in the order of the weights; where one is wrong, each site's base too.

        The sites are left with the bounds in `_lowered`, and otherwise as they were.
        """
        traced, sites = self._trace(model, data), self._handle.sites()
        states = self._handle.codec_states()
        values = [state.numpy() for state in states]
        try:
            self._lower(sites)
            found, numbers = traced.compressed(*tf.nest.flatten(data))
            paths = [v.path for v in model.trainable_variables]
            errors = list(_compared(paths, plain, found, _promised(law_checks(traced.laws, numbers))))
            wrong = any(error.is_wrong for error in errors)
            return errors, {name: _base(site) for name, site in sites.items()} if wrong else {}
        finally:
            for state, value in zip(states, values):
                state.assign(value)
            self._lower(sites)

    def _lower(self, sites: dict[str, Site]) -> None:
        for name, base in self._lowered.items():
            sites[name].set_bound(base)


def _peeked(iterator: tf.data.Iterator, count: int) -> tuple[list, Any]:
    """The next batches of an iterator, and an iterator of the same type over them, for one run of a train function."""
    batches = list(itertools.islice(iterator, count))
    if not batches:
        return [], iterator

    def as_specified(*batch: Any) -> Any:
        # With the shapes that the train function was traced for: a batch of its own would be another trace.
        batch = batch[0] if len(batch) == 1 and not isinstance(iterator.element_spec, tuple) else batch
        return tf.nest.map_structure(
            lambda spec, tensor: tf.compat.v1.placeholder_with_default(tensor, spec.shape),
            iterator.element_spec,
            batch,
        )

    again: Any = tf.data.Dataset.from_tensors(batches[0])
    for batch in batches[1:]:
        again = again.concatenate(tf.data.Dataset.from_tensors(batch))
    return batches, iter(again.map(as_specified))


def _obstacle(model: keras.Model) -> str | None:
    """Why `_keras.loss_gradients` is not what the model's train step computes, or would change it; None where it is."""
    if not _keras.KERAS_3:
        return "Keras 2"
    if _keras.has_own_train_step(model) or _keras.step_set(model) is not None:
        return "a train step of its own"
    if _keras.has_strategy(model):
        return "a distribution strategy"
    if model.run_eagerly:
        return "eager mode"
    if any(tensor.shape and tensor.shape[0] is not None for tensor in getattr(model, "inputs", None) or ()):
        return "a batch size that is part of the model"
    return state_unknown_to_keras(model)


def _why_not_sliced(spec: Any) -> str | None:
    """Why no samples can be taken from batches like that; None where they can."""
    parts = tf.nest.flatten(spec)
    if not all(isinstance(part, tf.TensorSpec) for part in parts):
        return "batches that are not of tensors alone"
    if not parts or not all(part.shape.rank for part in parts):
        return "an input without a batch axis"
    return None


def _has_batch_statistics(model: keras.Model) -> bool:
    return any(isinstance(layer, keras.layers.BatchNormalization) for layer in _keras.sublayers(model))


def _base(site: Site) -> float:
    return site.own_bound() if site.base is None else site.base


def _sampled(gradients: list) -> list:
    """Of each gradient at most `_COMPARED` of its elements, and its norm; None where it is None."""
    return [None if gradient is None else _sample(gradient) for gradient in gradients]


def _sample(gradient: Any) -> tuple[tf.Tensor, tf.Tensor]:
    values = tf.cast(getattr(gradient, "values", gradient), tf.float32)
    shape = values.shape
    stride = math.ceil((shape.num_elements() or 1) / _COMPARED)
    while stride > 1 and math.gcd(stride, shape[-1]) > 1:  # of all channels
        stride += 1
    return tf.reshape(values, [-1])[::stride], tf.norm(values)


def _promised(checks: Sequence[LawCheck]) -> dict[str, float]:
    """Root mean square of the error of each weight's gradient, by the law."""
    squares: collections.Counter = collections.Counter()
    for check in checks:
        if check.gradient != "input" and math.isfinite(check.predicted_sigma):
            squares[check.layer.rpartition(" -> ")[2]] += check.predicted_sigma**2  # type: ignore[assignment]
    return {weight: math.sqrt(square) for weight, square in squares.items()}


def _compared(
    paths: Sequence[str], plain: list, compressed: list, promised: dict[str, float]
) -> Iterator[GradientError]:
    norms = [float(part[1]) for part in plain if part is not None]
    least = _NOISE * math.sqrt(sum(norm**2 for norm in norms if math.isfinite(norm)))
    for path, exact, found in zip(paths, plain, compressed):
        if exact is None or found is None or not float(exact[1]) > least:
            continue
        size, error = _rms(exact[0].numpy()), _rms(found[0].numpy() - exact[0].numpy())
        if size > 0 and math.isfinite(size):
            error = error / size if math.isfinite(error) else math.inf
            yield GradientError(path, error, max(promised.get(path, 0.0) / size, _TRAVELS))


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.square(values.astype(np.float64)).mean()))
