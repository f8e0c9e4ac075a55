"""Instruments the layers of a model so that their saved activations are held compressed."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow import keras

from tf_comptrain import _keras, codecs, native
from tf_comptrain.codecs import Codec, ErrorBound
from tf_comptrain.graph import HeldTensors, base_of
from tf_comptrain.plan import KEPT_BY_CHOICE, Plan, StorageChoice, is_told_by_step, plan_model
from tf_comptrain.prediction import predicted_rows
from tf_comptrain.report import Report, Row
from tf_comptrain.rules import METHODS, Context
from tf_comptrain.storage import (
    COMPRESS,
    FUSED,
    KEEP,
    RECOMPUTE,
    GradientStatistics,
    RateChange,
    Site,
)

_UNTOLD = (
    "Layer %s was called under a GradientTape without training=True, so this model trains as plain Keras and holds "
    "nothing compressed. One line changes it: `with tf_comptrain.training_scope(), tf.GradientTape() as tape:` in "
    "place of `with tf.GradientTape() as tape:` (dropout and batch normalization stay as they are), or "
    "`model(inputs, training=True)`."
)
_FAILED = (
    "This was raised in layer %r (%s), whose saved tensors tf_comptrain holds compressed. If plain Keras runs it, "
    'tf_comptrain.compress_model(model, storage={%r: "keep"}) leaves it as plain Keras has it.'
)

_NOT_REWIRED = (
    "This was raised while tf_comptrain rewired a traced step, to hold what crosses into its backward pass. "
    'tf_comptrain.compress_model(model, storage="keep") leaves the step as plain Keras has it.'
)


class _OnceWarning:
    """Says of a model's first layer that a loop calls without `training=True` that nothing is held compressed."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, path: str) -> None:
        if not self._said:
            self._said = True
            logging.warning(_UNTOLD, path)


class Instrument:
    """A layer's override of `call`: the rule in a training step, plain Keras everywhere else.

    Args:
      plan: With a rule.
      codec: How tensors are encoded.
      bound: None for the default of each tensor's kind.
      warn: Of a call that could have been a training one; shared by the layers of a model.
    """

    compresses = True

    def __init__(self, plan: Plan, codec: Codec, bound: ErrorBound | None, warn: _OnceWarning | None = None):
        assert plan.rule is not None
        self.warn = warn or _OnceWarning()
        native.ops()
        self.path = plan.path
        self.rule = plan.rule
        self.idle = plan.idle
        self.codec = codec
        sites = {
            save.role: Site(
                f"{plan.path}/{save.role}", codec, bound, save.kind, rebuild=plan.storage == RECOMPUTE
            )
            for save in plan.rule.saves(plan.layer, plan.storage)
            if save.storage == COMPRESS
        }
        self.context = Context(plan.layer, plan.storage, sites, plan.rule.method)
        # What the last traced call read and made: TensorSpecs, one and the same for a tensor.
        self.traced: tuple[list, list] | None = None
        is_layer = isinstance(plan.layer, keras.layers.Layer)  # operations get all by position
        self.parameters = _keras.call_parameters(plan.layer, plan.rule.method) if is_layer else []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer = self.context.layer
        reason = (
            _keras.why_plain()
            or _codec_obstacle(self.codec, _keras.under_xla())
            or _keras.undense((args, kwargs))
            or _keras.state_unknown_to_keras(layer)
        )
        if reason is None and not (self.idle and not _keras.watched((args, kwargs))):
            try:
                positional, named = _arranged(self.parameters, args, kwargs)
                result = self.rule.call(self.context, *positional, **named)
                if not tf.executing_eagerly():
                    self.traced = _specs((args, kwargs)), _specs(result)
                return result
            except Exception as error:
                if "tf_comptrain" not in str(error):
                    _keras.add_to_message(error, _FAILED % (self.path, type(layer).__name__, self.path))
                raise
        trains = getattr(layer, "trainable_weights", None) or _keras.watched((args, kwargs))
        if reason == _keras.NOT_TRAINING and _keras.recording() and trains:
            self.warn(self.path)
        return self.context.original(*args, **kwargs)


def _specs(values: Any) -> list[tf.TensorSpec]:
    """Shape and type of each tensor among `values`."""
    found = []
    for tensor in tf.nest.flatten(values):
        if isinstance(tensor, tf.Tensor):
            if not hasattr(tensor, "_comptrain_spec"):
                tensor._comptrain_spec = tf.TensorSpec(tensor.shape, tensor.dtype)
            found.append(tensor._comptrain_spec)
    return found


def _arranged(
    parameters: Sequence[inspect.Parameter], args: tuple, kwargs: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """The arguments of a call as rules take them: the first and those without a default by position, others by name.

    As they are where they do not fit the parameters (the layer's own code says so then), or there are none.
    """
    plain_kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [p for p in parameters if p.kind in plain_kinds]
    if len(args) > len(named):
        return args, kwargs
    given = {**dict(zip((p.name for p in named), args)), **kwargs}
    if len(given) < len(args) + len(kwargs):
        return args, kwargs
    positional: list[Any] = []
    for parameter in named:
        if parameter.name not in given or (positional and parameter.default is not parameter.empty):
            break
        positional.append(given.pop(parameter.name))
    return positional, given


class _Kept:
    """Override of `call` of a layer whose tensors the user wants kept: says which those are.

    Args:
      layer: The layer or operation.
      held: What would hold them.
      call: What is called; None: the layer's own code.
    """

    compresses = True

    def __init__(self, layer: Any, held: HeldTensors, call: Instrument | None = None):
        self._layer = weakref.ref(layer)
        self._held = weakref.ref(held)
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer: Any = self._layer()
        held = self._held()
        call = self._call or functools.partial(_keras.class_call(layer), layer)
        if tf.executing_eagerly() or held is None:
            return call(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        before = len(graph.get_operations())
        result = call(*args, **kwargs)
        held.keep(graph, graph.get_operations()[before:])
        read = [tensor for tensor in tf.nest.flatten((args, kwargs)) if isinstance(tensor, tf.Tensor)]
        held.keep(graph, [base_of(tensor).op for tensor in read])
        return result


class _OwnCode:
    """Override of `call` that marks the code of a layer of the user's."""

    def __init__(self, layer: keras.layers.Layer):
        self._layer = weakref.ref(layer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer: Any = self._layer()
        with _keras.own_code_scope():
            return _keras.class_call(layer)(layer, *args, **kwargs)


class Instrumentation:
    """Everything `compress_model` set up for a model: the handle that callbacks work with.

    Attributes:
      instruments: By layer, those of `compress_model`.
      report: What was done.
      wrapped: By layer, those of `Compress` wrappers in the model.
      collecting: Scalar bool variable, True on steps that collect gradient statistics; None until
        `collect_statistics` is called.
      pace: [factor, pace, offset] of the learning-rate schedule (`_keras.pace_schedule`); None until
        `pace_schedule` is called.
      bound_scale: Factor on all bounds that callbacks set: below 1 where training asked for tighter
        ones.
      rate_changes: Under XLA: every time that values were out of a stream's range, in order.
      held: What is held of the traced steps, beyond what the rules of layers hold; None where nothing is.
      kept: Layers that were told to keep their tensors.
      frozen: By path, layers that were not trained when the model was compressed, and so are plain.
    """

    def __init__(
        self,
        instruments: dict[keras.layers.Layer, Instrument],
        report: Report,
        wrapped: dict[keras.layers.Layer, Instrument],
    ):
        self.instruments = instruments
        self.report = report
        self.wrapped = wrapped
        self.collecting: tf.Variable | None = None
        self.pace: tf.Variable | None = None
        self.bound_scale = 1.0
        self.rate_changes: list[RateChange] = []
        self.frozen: dict[str, Any] = {}
        self.held: HeldTensors | None = None
        self.kept: list[Any] = []

    def all_instruments(self) -> dict[keras.layers.Layer, Instrument]:
        return {**self.instruments, **self.wrapped}

    def sites(self) -> dict[str, Site]:
        """Places where tensors are held compressed, by "layer/role"."""
        return {
            site.name: site
            for instrument in self.all_instruments().values()
            for site in instrument.context.sites.values()
        }

    def all_sites(self) -> list[Site]:
        """Those of `sites`, and those of the traced steps."""
        return [*self.sites().values(), *(self.held.sites.values() if self.held else ())]

    def codec_states(self) -> list:
        """The variables that codecs carry from step to step."""
        own = [site.state for site in self.sites().values()]
        return own if self.held is None else [self.held.table.variable, *own]

    def statistics(self) -> list:
        """The variables that collecting steps write."""
        found = [site.statistics for site in self.sites().values() if site.statistics is not None]
        own = [part for statistics in found for part in (statistics.output, statistics.weight)]
        table = None if self.held is None else self.held.statistics
        return own if table is None else [table.variable, *own]

    def reset_bounds(self) -> None:
        """Returns every site to the bound that `compress_model` gave it."""
        self.bound_scale = 1.0
        for site in self.all_sites():
            site.reset_bound()

    def raise_rates(self) -> list[RateChange]:
        """Gives a larger rate to the streams that saturated under XLA, and logs it.

        Returns:
          The streams whose rate rises as soon as the step is traced anew.
        """
        changes = []
        for site in self.all_sites():
            change = site.raise_rate()
            if change is None:
                continue
            self.rate_changes.append(change)
            share = f"{change.site}: {change.saturated:.2g} of the values were out of the range of"
            if change.new_bits > change.bits:
                changes.append(change)
                logging.warning(
                    "%s %d bits; %d from now on (one compilation).", share, change.bits, change.new_bits
                )
            else:
                logging.warning(
                    "%s %d bits, the largest rate: a larger error bound fits them.", share, change.bits
                )
        return changes

    def warn_of_unfrozen(self) -> None:
        """Says which layers are trained by now, and hold their activations as plain Keras does."""
        names = [path for path, layer in self.frozen.items() if layer.trainable]
        if names:
            logging.warning(
                "%d layers (%s, ...) were frozen when the model was compressed, and are held as plain Keras has "
                "them. To compress them too: tf_comptrain.restore_model(model), then compress_model(model).",
                len(names),
                names[0],
            )

    def collect_statistics(self, model: keras.Model) -> None:
        """Builds the gradient statistics into the train step (once; drops the compiled functions)."""
        if self.collecting is not None:
            return
        with _keras.strategy_scope(model):
            self.collecting = tf.Variable(False, trainable=False, name="comptrain_collecting")
            for site in self.sites().values():
                if site.kind != "nonlinear":
                    site.statistics = GradientStatistics(site.name, self.collecting)
            if self.held is not None:
                self.held.collect(self.collecting)
        _keras.forget_traces(model)

    def pace_schedule(self, model: keras.Model) -> tf.Variable:
        """Lets the model's learning-rate schedule follow `pace`, as it was left or from 1, 1, 0 on."""
        if self.pace is None:
            with _keras.strategy_scope(model):
                self.pace = tf.Variable((1.0, 1.0, 0.0), trainable=False, name="comptrain_pace")
        if _keras.pace_schedule(model.optimizer, self.pace):
            self.pace.assign((1.0, 1.0, 0.0))
            _keras.forget_traces(model)
            model.make_train_function()
        return self.pace


# model -> Instrumentation: by compress_model, or of models that have wrappers alone.
_instrumented: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_wrapped: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
# Set from the first compressed model on.
_watching: _keras.on_gradients | None = None


def instrumentation(model: keras.Model) -> Instrumentation:
    """The handle of a model that `compress_model` instrumented, or that has `Compress` wrappers.

    Raises:
      ValueError: Neither.
    """
    found = _instrumented.get(model) or _wrapped.get(model)
    if found is None:
        wrapped = _wrapped_instruments(model)
        if not wrapped:
            raise ValueError(
                f"Model {model.name!r} is not compressed: call tf_comptrain.compress_model(model) first."
            )
        found = Instrumentation({}, Report(model.name, (), _obstacle(model)), wrapped)
        _wrapped[model] = found
    return found


def is_compressed(model: keras.Model) -> bool:
    """Whether `instrumentation` has something to return."""
    return model in _instrumented or model in _wrapped or bool(_wrapped_instruments(model))


def _wrapped_instruments(model: keras.Model) -> dict[keras.layers.Layer, Instrument]:
    own = _instrumented[model].instruments if model in _instrumented else {}
    calls = {
        layer: vars(layer)[method]
        for layer in _keras.sublayers(model)
        for method in METHODS
        if layer not in own and _keras.has_own_call(layer, method)
    }
    return {layer: call for layer, call in calls.items() if isinstance(call, Instrument)}


def _obstacle(model: keras.Model, codec: Codec | None = None) -> str | None:
    """Why the whole model will train as plain Keras; None when it will not."""
    xla = _keras.jit_compile(model)
    return (_codec_obstacle(codec, xla) if codec is not None else None) or _keras.device_obstacle(xla)


def _codec_obstacle(codec: Codec, xla: bool) -> str | None:
    """Why a codec cannot run, under XLA or in the executor."""
    if not xla or codec.under_xla:
        return None
    return f"compiled with XLA (jit_compile=True), for which codec {codec.name!r} has no lowering"


def compress_model(
    model: keras.Model,
    codec: str | Codec = "plane",
    error_bound: float | ErrorBound | None = None,
    storage: StorageChoice = None,
) -> Report:
    """Makes a model train with its saved activations held compressed, in place.

    Weights, names, configuration and files of the model stay as they are; inference, evaluation and
    export run plain Keras. Each supported layer instance is instrumented; every other one is kept
    as it is and named in the report. A layer that another compressed model shares (the discriminator in
    a GAN) stays as that model has it, until that is restored.

    Args:
      model: Functional, Sequential, nested or subclassed; built or not, compiled or not.
      codec: Stream format: "plane" (fast), "rans" (small), "zvc" (lossless), "auto" (one of these
        for each tensor, by a sample of it), "plane+dither", "rans+dither" (unbiased), or a codec object.
      error_bound: None: relative to each tensor's running standard deviation, 0.1 sigma for inputs
        of convolutions, dense layers and batch normalization, 0.02 sigma where a nonlinear function
        reads the tensor (see `ErrorBound` for the formula and its first step). A number: absolute,
        in units of the activations. An `ErrorBound`: as it says.
      storage: How saved tensors are held. None: each layer's best ("compress", or "bitmask" where a
        bit per element is enough). A string: for all layers that can. A mapping from layer name,
        path or class to a string, or a function from layer (or operation) to string or None: for those; None
        and layers not named get the default. Strings: "compress"; "recompute" (the input of a
        convolution, dense layer or activation is rebuilt from the stream of the batch
        normalization before it: about a third less to hold, and its error is that stream's times
        gamma / sigma of the channel; where there is none, "compress"); "bitmask"; "keep" (plain
        Keras, bit-equal); and, for BatchNormalization, "fused" (kept, but computed by the fused
        kernel).

    Returns:
      What is held how, what was skipped and why, and predicted bytes; prints as a table, and fills itself when
      a step is traced.

    Raises:
      TypeError: An argument of the wrong type.
      ValueError: A bound that is not a positive normal number, an unknown codec, storage or layer
        name, a model that is compressed already. Nothing has been changed then.
      LibraryError: The op library is missing or was built for another TensorFlow.

    Example:
      >>> report = ct.compress_model(model)
      >>> model.fit(images, labels)

    Reference:
      COMET (Jin et al., VLDB 2022); Gist (Jain et al., ISCA 2018) for the bit masks.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` must be a keras.Model. Received: {model!r}. For one layer use tf_comptrain.Compress."
        )
    chosen_codec = codecs.get(codec)
    bound = None if error_bound is None else ErrorBound.parse(error_bound)
    if model in _instrumented:
        raise ValueError(
            f"Model {model.name!r} is compressed already: call tf_comptrain.restore_model(model) first."
        )
    plans = plan_model(model, storage)
    native.ops()
    obstacle = _obstacle(model, chosen_codec)

    instruments: dict[keras.layers.Layer, Instrument] = {}
    warn = _OnceWarning()
    with _keras.strategy_scope(model):
        for plan in plans:
            if plan.rule is not None:
                instruments[plan.layer] = Instrument(plan, chosen_codec, bound, warn)
    for layer, instrument in instruments.items():
        _keras.set_call(layer, instrument, instrument.rule.method)
    for layer in _keras.own_code_layers(model):
        if not _keras.has_own_call(layer):
            _keras.set_call(layer, _OwnCode(layer))
    wrapped = {k: v for k, v in _wrapped_instruments(model).items() if k not in instruments}
    rows = _rows(model, plans, instruments)
    report = Report(model.name, rows, obstacle, _keras.layers_without_xla(model), _renewed(model, plans))
    handle = Instrumentation(instruments, report, wrapped)
    if storage != KEEP:
        handle.held = _held_tensors(model, chosen_codec, bound)
        for plan in plans:
            ours = instruments.get(plan.layer)
            if plan.storage == FUSED or plan.reason == KEPT_BY_CHOICE and not _keras.has_own_call(plan.layer):
                _keras.set_call(plan.layer, _Kept(plan.layer, handle.held, ours))
                handle.kept.append(plan.layer)
    handle.frozen = {
        plan.path: plan.layer
        for plan in plans
        if plan.rule is None and not getattr(plan.layer, "trainable", True)
    }
    if instruments or handle.held is not None:
        _keras.override_train_step(model)
        _keras.watch_steps(model, lambda: bool(handle.raise_rates()), handle.warn_of_unfrozen)
    _instrumented[model] = handle
    _keras.forget_traces(model)
    return report


def _rows(model: keras.Model, plans: list[Plan], instruments: dict[Any, Instrument]) -> list[Row]:
    """What layers' rules hold, as far as shapes are known: from the model's graph, and from the last trace."""
    sites = {id(layer): instrument.context.sites for layer, instrument in instruments.items()}
    traced = [(layer, *call.traced) for layer, call in instruments.items() if call.traced is not None]
    calls = [*_keras.all_graph_calls(model), *traced]
    return list(predicted_rows(plans, sites, calls, xla=_keras.jit_compile(model)))


def _renewed(model: keras.Model, plans: list[Plan]) -> Callable[[], list[Row] | None]:
    """Returns a model's rows as they are now; None once it is restored or gone."""
    reference = weakref.ref(model)

    def rows() -> list[Row] | None:
        model: Any = reference()
        handle = None if model is None else _instrumented.get(model)
        if handle is None:
            return None
        crossing = handle.held.rows() if handle.held else []
        told = [plan for plan in plans if not is_told_by_step(plan)] if crossing else plans
        return [*_rows(model, told, handle.instruments), *crossing]

    return rows


def _held_tensors(model: keras.Model, codec: Codec, bound: ErrorBound | None) -> HeldTensors:
    global _watching
    if _watching is None:
        _watching = _keras.on_gradients(_rewire)
        _watching.begin()
    reference = weakref.ref(model)
    with _keras.strategy_scope(model):
        return HeldTensors(codec, bound, lambda: getattr(reference(), "variables", []))


def _rewire(backward: _keras.BackwardPass) -> dict[str, tf.Tensor]:
    """Holds what crosses into a backward pass that reads variables of a compressed model."""
    if _keras.why_step_plain() is not None or not backward.seeds:
        return {}
    for handle in list(_instrumented.values()):
        held = handle.held
        if held is None or _codec_obstacle(held.codec, _keras.under_xla()) is not None:
            continue
        if held.is_of(backward.graph):
            try:
                return held.rewire(backward)
            except Exception as error:
                _keras.add_to_message(error, _NOT_REWIRED)
                raise
    return {}


def report(model: keras.Model) -> Report:
    """How the saved activations of a compressed model are held: what `compress_model` returned for it.

    Args:
      model: A model that `compress_model` took, or one with `Compress` wrappers.

    Returns:
      A `Report`, which has what crosses in the traced step once there is one; bytes are predicted, for one sample.

    Raises:
      ValueError: The model is not compressed.

    Example:
      >>> ct.compress_model(model)
      >>> model.fit(images, labels)
      >>> print(ct.report(model))
    """
    return instrumentation(model).report


def restore_model(model: keras.Model) -> None:
    """Undoes `compress_model`; weights keep what they learned.

    Raises:
      ValueError: The model is not compressed.
    """
    if model not in _instrumented:
        raise ValueError(
            f"Model {model.name!r} is not compressed by compress_model: there is nothing to undo."
        )
    for layer, instrument in _instrumented[model].instruments.items():
        _keras.reset_call(layer, instrument.rule.method)
    for layer in _instrumented[model].kept:
        _keras.reset_call(layer)
    for layer in _keras.own_code_layers(model):
        if isinstance(vars(layer).get("call"), _OwnCode):  # else what a wrapper, or the user, has set
            _keras.reset_call(layer)
    _keras.reset_train_step(model)
    _keras.unpace_schedule(getattr(model, "optimizer", None))
    _keras.unwatch_steps(model)
    del _instrumented[model]
    _keras.forget_traces(model)


def raise_rates(model: keras.Model) -> bool:
    """Under XLA, in a loop of your own: gives more bits to streams that values were out of the range of.

    Such values saturate, and the error bound does not hold for them. A model that `compress_model` took
    looks for them by itself where its own train function runs (`fit`, `train_on_batch`). Call this where
    it does not: in loops that call the model, and for models with `Compress` wrappers alone. It reads a
    few numbers for each tensor: call it after steps 1, 2, 4, 8, every 16th and the last.

    Returns:
      Whether the step has to be traced again, for which a tf.function has to be made again. The model's
      own train function, where there is one, has been.

    Raises:
      ValueError: The model is not compressed.

    Example:
      >>> step = tf.function(train_step, jit_compile=True)
      >>> for count, batch in enumerate(batches, 1):
      ...     step(batch)
      ...     if (count in (1, 2, 4, 8) or count % 16 == 0) and ct.raise_rates(model):
      ...         step = tf.function(train_step, jit_compile=True)
    """
    if not instrumentation(model).raise_rates():
        return False
    if getattr(model, "train_function", None) is not None:
        model.make_train_function(force=True)
    return True
