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
from tf_comptrain.compression.choice import Plan, StorageChoice, operations_chosen, plan_model
from tf_comptrain.compression.report import Report, Row
from tf_comptrain.compression.rows import rows_of
from tf_comptrain.graph import HeldTensors, made_by
from tf_comptrain.rules import Context, Rule
from tf_comptrain.storage import COMPRESS, FUSED, KEEP, RateChange, Site

_EAGER = (
    "Model %r trains in eager mode, where there is no traced step to hold tensors in: it trains as plain Keras. "
    "Put the step under tf.function, or leave run_eagerly out of model.compile; tf_comptrain.Compress and "
    "tf_comptrain.Recompute work eagerly too."
)
_FAILED = (
    "This was raised in layer %r (%s), whose saved tensors tf_comptrain holds compressed. If plain Keras runs it, "
    'tf_comptrain.compress_model(model, storage={%r: "keep"}) leaves it as plain Keras has it.'
)

_NOT_REWIRED = (
    "This was raised while tf_comptrain rewired a traced step, to hold what crosses into its backward pass. "
    'tf_comptrain.compress_model(model, storage="keep") leaves the step as plain Keras has it.'
)


class Instrument:
    """A layer's override of `call`: the rule in a training step, plain Keras everywhere else.

    Args:
      layer: The layer, or operation of a functional graph.
      path: Its name in messages, and the first part of its sites' names.
      rule: Its rule.
      codec: How tensors are encoded.
      bound: None for the default of each tensor's kind.
    """

    compresses = True

    def __init__(self, layer: Any, path: str, rule: Rule, codec: Codec, bound: ErrorBound | None):
        native.ops()
        self.path = path
        self.rule = rule
        self.codec = codec
        sites = {
            save.role: Site(f"{path}/{save.role}", codec, bound, save.kind) for save in rule.saves(layer)
        }
        self.context = Context(layer, sites)
        is_layer = isinstance(layer, keras.layers.Layer)  # operations get all by position
        self.parameters = _keras.call_parameters(layer) if is_layer else []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer = self.context.layer
        if self._why_plain(args, kwargs) is not None:
            return self.context.original(*args, **kwargs)
        try:
            positional, named = _arranged(self.parameters, args, kwargs)
            return self.rule.call(self.context, *positional, **named)
        except Exception as error:
            if "tf_comptrain" not in str(error):
                _keras.add_to_message(error, _FAILED % (self.path, type(layer).__name__, self.path))
            raise

    def _why_plain(self, args: tuple, kwargs: dict[str, Any]) -> str | None:
        reason = _keras.why_plain() or _keras.undense((args, kwargs))
        if reason is not None:
            return reason
        if self.rule.substitutes:
            return "in eager mode" if tf.executing_eagerly() and not self.rule.needs_bits else None
        layer = self.context.layer
        if not getattr(layer, "trainable_weights", None) and not _keras.watched((args, kwargs)):
            return "no gradient reaches it"
        return (
            _codec_obstacle(self.codec, _keras.under_xla())
            or _keras.branch_inside_tape()
            or _keras.state_unknown_to_keras(layer)
        )


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


class _Chosen:
    """Override of `call` of a layer that has a storage of the user's choice: says which tensors have it.

    Args:
      layer: The layer or operation.
      storage: For what it makes and reads.
      held: What holds tensors.
      call: What is called; None: the layer's own code.
    """

    compresses = True

    def __init__(self, layer: Any, storage: str, held: HeldTensors, call: Instrument | None = None):
        self._layer = weakref.ref(layer)
        self._storage = storage
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
        held.choose(graph, graph.get_operations()[before:], self._storage)
        read = [tensor for tensor in tf.nest.flatten((args, kwargs)) if tf.is_symbolic_tensor(tensor)]
        held.choose(graph, [op for tensor in read for op in made_by(tensor, self._storage)], self._storage)
        return result


class Instrumentation:
    """Everything `compress_model` set up for a model: the handle that callbacks work with.

    Attributes:
      overridden: Layers whose `call` compress_model has overridden.
      report: What was done.
      wrapped: By layer, the rules of `Compress` wrappers in the model, and of layers that `register_rule` has one for.
      collecting: Scalar bool variable, True on steps that collect gradient statistics; None until
        `collect_statistics` is called.
      pace: [factor, pace, offset] of the learning-rate schedule (`_keras.pace_schedule`); None until
        `pace_schedule` is called.
      bound_scale: Factor on all bounds that callbacks set: below 1 where training asked for tighter
        ones.
      rate_changes: Under XLA: every time that values were out of a stream's range, in order.
      held: What is held of the traced steps; None where nothing is.
      is_eager: Whether it was said that the model trains in eager mode.
    """

    def __init__(self, report: Report, wrapped: dict[keras.layers.Layer, Instrument]):
        self.report = report
        self.wrapped = wrapped
        self.collecting: tf.Variable | None = None
        self.pace: tf.Variable | None = None
        self.bound_scale = 1.0
        self.rate_changes: list[RateChange] = []
        self.held: HeldTensors | None = None
        self.overridden: list[Any] = []
        self.is_eager = False

    def own_sites(self) -> dict[str, Site]:
        """Places of wrappers and of layers with a rule, by "layer/role"."""
        return {
            site.name: site
            for instrument in self.wrapped.values()
            for site in instrument.context.sites.values()
        }

    def sites(self) -> dict[str, Site]:
        """Places where tensors are held compressed, by name: those of the traced steps, and `own_sites`."""
        return {**self.own_sites(), **(self.held.sites if self.held else {})}

    def codec_states(self) -> list:
        """The variables that codecs carry from step to step."""
        own = [site.state for site in self.own_sites().values()]
        return own if self.held is None else [self.held.table.variable, *own]

    def statistics(self) -> list:
        """The variables that collecting steps write."""
        table = None if self.held is None else self.held.statistics
        return [] if table is None else [table.variable]

    def reset_bounds(self) -> None:
        """Returns every site to the bound that `compress_model` gave it."""
        self.bound_scale = 1.0
        for site in self.sites().values():
            site.reset_bound()

    def raise_rates(self) -> list[RateChange]:
        """Gives a larger rate to the streams that saturated under XLA, and logs it.

        Returns:
          The streams whose rate rises as soon as the step is traced anew.
        """
        changes = []
        for site in self.sites().values():
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

    def collect_statistics(self, model: keras.Model) -> None:
        """Builds the gradient statistics into the train step (once; drops the compiled functions)."""
        if self.collecting is not None:
            return
        with _keras.strategy_scope(model):
            self.collecting = tf.Variable(False, trainable=False, name="comptrain_collecting")
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
        found = Instrumentation(Report(model.name, (), _obstacle(model)), wrapped)
        _wrapped[model] = found
    return found


def is_compressed(model: keras.Model) -> bool:
    """Whether `instrumentation` has something to return."""
    return model in _instrumented or model in _wrapped or bool(_wrapped_instruments(model))


def _wrapped_instruments(model: keras.Model) -> dict[keras.layers.Layer, Instrument]:
    calls = {layer: vars(layer).get("call") for layer in _keras.sublayers(model)}
    return {
        layer: call
        for layer, call in calls.items()
        if isinstance(call, Instrument) and not call.rule.substitutes
    }


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
    export run plain Keras. Whatever crosses from the forward to the backward pass of a traced step is held as a
    stream or as bits, or rebuilt from what is; the report names every tensor, and why some are kept. In
    eager mode, where nothing is traced, the model trains as plain Keras.

    Args:
      model: Functional, Sequential, nested or subclassed; built or not, compiled or not.
      codec: Stream format: "plane" (fast), "rans" (small), "zvc" (lossless), "auto" (one of these
        for each tensor, by a sample of it), "plane+dither", "rans+dither" (unbiased), or a codec object.
      error_bound: None: relative to each tensor's running standard deviation, 0.1 sigma for inputs
        of convolutions, dense layers and batch normalization, 0.02 sigma where a nonlinear function
        reads the tensor (see `ErrorBound` for the formula and its first step). A number: absolute,
        in units of the activations. An `ErrorBound`: as it says.
      storage: How the tensors that layers make and read are held. None: each in the cheapest way. A string:
        for all layers. A mapping from layer name, path or class to a string, or a function from layer (or operation
        of a functional graph) to string or None: for those, and for what is inside them; a mapping may also name
        operations of the traced step, or scopes of them ("decoder/block_1"), as the report does. Strings:
        "compress" (the default); "recompute" (what a batch normalization makes may be rebuilt from the stream of its
        input, about a third less to hold; its error is then that stream's times gamma / sigma of the channel); "keep"
        (as plain Keras has it, bit-equal); "fused" (kept, but computed by the operations that this package prefers,
        such as TensorFlow's fused batch normalization).

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
    report = Report(
        model.name, (), _obstacle(model, chosen_codec), _keras.layers_without_xla(model), _rows_of(model)
    )
    handle = Instrumentation(report, _wrapped_instruments(model))
    if storage != KEEP:
        handle.held = _held_tensors(model, chosen_codec, bound, operations_chosen(model, storage))
        for plan in plans:
            _override(plan, handle, handle.held, model, bound)
        _keras.override_train_step(model)
        _keras.watch_steps(model, lambda: bool(handle.raise_rates()))
    _instrumented[model] = handle
    _keras.forget_traces(model)
    return report


def _override(
    plan: Plan, handle: Instrumentation, held: HeldTensors, model: keras.Model, bound: ErrorBound | None
) -> None:
    """Overrides the `call` of one layer."""
    call: Any = None
    if plan.rule is not None:
        with _keras.strategy_scope(model):
            call = Instrument(plan.layer, plan.path, plan.rule, held.codec, bound)
        if call.context.sites:
            handle.wrapped[plan.layer] = call
    if plan.storage not in (None, COMPRESS):
        call = _Chosen(plan.layer, KEEP if plan.storage == FUSED else plan.storage, held, call)
    _keras.set_call(plan.layer, call)
    handle.overridden.append(plan.layer)


def _rows_of(model: keras.Model) -> Callable[[], list[Row] | None]:
    """Returns a model's rows as they are now; None once it is restored or gone."""
    reference = weakref.ref(model)
    expected: list[list[Row]] = []  # of one attempt

    def rows() -> list[Row] | None:
        model: Any = reference()
        handle = None if model is None else _instrumented.get(model)
        if handle is None or handle.held is None:
            return None
        if handle.held.crossings:
            return rows_of(handle.held)
        if not expected and tf.executing_eagerly() and handle.report.obstacle is None:
            expected.append(_expected_rows(model, handle))
        return expected[0] if expected else []

    return rows


def _expected_rows(model: keras.Model, handle: Instrumentation) -> list[Row]:
    """What will be held, by a trace of the model alone; nothing where it does not say what it takes."""
    specs = _keras.input_specs(model)
    held = handle.held
    if held is None or specs is None:
        return []
    with _keras.strategy_scope(model):
        handle.held = held.beside()

    def gradients(*inputs):
        with tf.GradientTape() as tape:
            y = model(tf.nest.pack_sequence_as(specs, inputs), training=True)
        return tape.gradient(tf.nest.flatten(y), _keras.trainable_variables(model))

    try:
        step = tf.function(gradients, autograph=False, jit_compile=_keras.jit_compile(model))
        step.get_concrete_function(*tf.nest.flatten(specs))
        return rows_of(handle.held)
    except Exception as error:  # the step that is trained may be another: that one's errors count
        logging.info("The report of %s waits for its first step: %s", model.name, error)
        return []
    finally:
        handle.held = held


def _held_tensors(
    model: keras.Model, codec: Codec, bound: ErrorBound | None, named: dict[str, str]
) -> HeldTensors:
    global _watching
    if _watching is None:
        _watching = _keras.on_gradients(_rewire, _say_eager)
        _watching.begin()
    reference = weakref.ref(model)
    with _keras.strategy_scope(model):
        return HeldTensors(codec, bound, lambda: getattr(reference(), "variables", []), named)


def _say_eager(sources: Sequence[Any]) -> None:
    """Says of each compressed model once that eager mode holds nothing."""
    handles = {id(getattr(source, "handle", None)) for source in sources}
    for model, instrumented in list(_instrumented.items()):
        if instrumented.is_eager or instrumented.held is None:
            continue
        if not handles.isdisjoint(instrumented.held.weights()):
            instrumented.is_eager = True
            logging.warning(_EAGER, model.name)


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
    for layer in _instrumented[model].overridden:
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
