"""Instruments the layers of a model so that their saved activations are held compressed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Union

import tensorflow as tf
from absl import logging
from tensorflow import keras

from tf_comptrain import _keras, codecs, gpu_check, native
from tf_comptrain.codecs import Codec, ErrorBound
from tf_comptrain.prediction import predicted_rows
from tf_comptrain.report import Report
from tf_comptrain.rules import METHODS, Context, Rule, find_rule
from tf_comptrain.storage import (
    BITMASK,
    COMPRESS,
    FUSED,
    KEEP,
    NOTHING,
    RECOMPUTE,
    GradientStatistics,
    RateChange,
    Site,
)

StorageChoice = Union[str, Mapping[Any, str], Callable[[keras.layers.Layer], Union[str, None]], None]
_CHOICES = (COMPRESS, RECOMPUTE, BITMASK, FUSED, KEEP)
_RECOMPUTED = "runs again, inside tf_comptrain.Recompute"
_UNGRADED = "no gradient reaches it: nothing up to it is trained"
_UNTOLD = (
    "Layer %s was called under a GradientTape without training=True, so its activations are not held compressed. "
    "In a training step pass training=True, or use `with tf_comptrain.training_scope():`."
)
_ANY_FUNCTION = (
    "what its function's gradient needs is not known; tf_comptrain.Compress(layer) opts in where it bears a small "
    "error of the input, tf_comptrain.Recompute(layer) holds the exact input alone"
)
_IMAGES = (
    "where a gradient goes through it, it is held as plain Keras does; tf_comptrain.Recompute(layer) holds its "
    "input alone"
)
# These call their inner layers in loops of their own, where a tensor has one handle for many steps.
_IN_A_LOOP = (
    "its states are made in a loop of TensorFlow's, which keeps them; tf_comptrain.Recompute(layer) holds "
    "its input alone"
)
_OPAQUE = tuple(
    getattr(keras.layers, name)
    for name in ("RNN", "Bidirectional", "TimeDistributed", "StackedRNNCells")
    if hasattr(keras.layers, name)
)


class Plan(NamedTuple):
    """What will happen to one layer, or operation of a functional graph: a storage, and the rule.

    No rule where it stays plain; then the reason.
    """

    layer: Any
    path: str
    storage: str
    rule: Rule | None
    reason: str = ""


class Instrument:
    """A layer's override of `call`: the rule in a training step, plain Keras everywhere else."""

    def __init__(self, plan: Plan, codec: Codec, bound: ErrorBound | None):
        assert plan.rule is not None
        native.ops()
        self.path = plan.path
        self.rule = plan.rule
        self.codec = codec
        sites = {
            save.role: Site(
                f"{plan.path}/{save.role}", codec, bound, save.kind, rebuild=plan.storage == RECOMPUTE
            )
            for save in plan.rule.saves(plan.layer, plan.storage)
            if save.storage == COMPRESS
        }
        self.context = Context(plan.layer, plan.storage, sites, plan.rule.method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        reason = _keras.why_plain() or _codec_obstacle(self.codec, _keras.under_xla())
        if reason is None:
            return self.rule.call(self.context, *args, **kwargs)
        trained = getattr(self.context.layer, "trainable_weights", None)
        if reason == _keras.NOT_TRAINING and trained and _keras.recording():
            logging.log_first_n(logging.WARNING, _UNTOLD, 1, self.path)
        return self.context.original(*args, **kwargs)


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

    def all_instruments(self) -> dict[keras.layers.Layer, Instrument]:
        return {**self.instruments, **self.wrapped}

    def sites(self) -> dict[str, Site]:
        """Places where tensors are held compressed, by "layer/role"."""
        return {
            site.name: site
            for instrument in self.all_instruments().values()
            for site in instrument.context.sites.values()
        }

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
    if xla and not codec.under_xla:
        return f"compiled with XLA (jit_compile=True), for which codec {codec.name!r} has no lowering"
    if not xla and gpu_check.on_gpu() and not codec.on_gpu:
        return f"on a GPU, for which codec {codec.name!r} has no kernel: use 'plane', 'rans' or 'zvc'"
    return None


def compress_model(
    model: keras.Model,
    codec: str | Codec = "plane",
    error_bound: float | ErrorBound | None = None,
    storage: StorageChoice = None,
) -> Report:
    """Makes a model train with its saved activations held compressed, in place.

    Weights, names, configuration and files of the model stay as they are; inference, evaluation and
    export run plain Keras. Each supported layer instance is instrumented; every other one is kept
    as it is and named in the report.

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
      What is held how, what was skipped and why, and predicted bytes; prints as a table.

    Raises:
      TypeError: An argument of the wrong type.
      ValueError: A bound that is not a positive normal number, an unknown codec, storage or layer
        name, a model or layer that is compressed already. Nothing has been changed then.
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
    plans = _plan(model, storage)
    native.ops()
    obstacle = _obstacle(model, chosen_codec)

    instruments: dict[keras.layers.Layer, Instrument] = {}
    with _keras.strategy_scope(model):
        for plan in plans:
            if plan.rule is not None:
                instruments[plan.layer] = Instrument(plan, chosen_codec, bound)
    calls = list(_keras.all_graph_calls(model))
    sites = {id(layer): instrument.context.sites for layer, instrument in instruments.items()}
    rows = predicted_rows(plans, sites, calls, xla=_keras.jit_compile(model))
    report = Report(model.name, tuple(rows), obstacle, tuple(_keras.layers_without_xla(model)))
    for layer, instrument in instruments.items():
        _keras.set_call(layer, instrument, instrument.rule.method)
    wrapped = {k: v for k, v in _wrapped_instruments(model).items() if k not in instruments}
    handle = Instrumentation(instruments, report, wrapped)
    handle.frozen = {
        plan.path: plan.layer
        for plan in plans
        if plan.rule is None and not getattr(plan.layer, "trainable", True)
    }
    if instruments:
        _keras.override_train_step(model)
        _keras.watch_steps(model, lambda: bool(handle.raise_rates()), handle.warn_of_unfrozen)
    _instrumented[model] = handle
    _keras.forget_traces(model)
    return report


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


def _plan(model: keras.Model, storage: StorageChoice) -> list[Plan]:
    if model in _instrumented:
        raise ValueError(
            f"Model {model.name!r} is compressed already: call tf_comptrain.restore_model(model) first."
        )
    leaves = list(_leaves(model, ""))
    choose = _chooser(storage, leaves)
    plans = []
    ungraded = _keras.ungraded(model)
    wrappers = [layer for layer in _keras.sublayers(model) if getattr(layer, "recomputes", False)]
    recomputed = {id(layer) for wrapper in wrappers for layer in _keras.sublayers(wrapper)}
    for path, layer, opaque in leaves:
        if any(_keras.has_own_call(layer, method) for method in METHODS):
            raise ValueError(
                f"Layer {path!r} has an overridden `call`: it is instrumented already, by another "
                "compress_model or by hand. Restore that first (tf_comptrain.restore_model)."
            )
        plan = _plan_layer(path, layer, opaque, choose(path, layer))
        if not opaque and id(layer) in ungraded and find_rule(layer) is None:
            plan = plan._replace(storage=NOTHING, reason=_UNGRADED)
        elif plan.rule is None and id(layer) in recomputed:
            plan = plan._replace(storage=RECOMPUTE, reason=_RECOMPUTED)
        plans.append(plan)
    return _drop_tensors_kept_anyway(model, plans)


def _leaves(layer: keras.layers.Layer, prefix: str):
    """(path, layer, why it is opaque) of the innermost layers that rules may apply to, each once."""
    seen = set()
    for child in _keras.direct_sublayers(layer):
        path = f"{prefix}{child.name}"
        inner = _keras.direct_sublayers(child)
        opaque = ""
        if isinstance(child, _OPAQUE):
            opaque = _IN_A_LOOP
        elif getattr(child, "handles_storage", False):
            opaque = "wrapped in tf_comptrain.Compress"
        rule = find_rule(child)
        found = list(_leaves(child, f"{path}/")) if inner and not opaque and not _is_leaf(rule) else []
        if rule is not None:
            found = [item for item in found if not isinstance(item[1], rule.covers)]
        if not found or rule is not None:
            found.append((path, child, opaque))
        for item in found:
            if id(item[1]) not in seen:
                seen.add(id(item[1]))
                yield item
    for operation in _keras.graph_operations(layer):
        if id(operation) not in seen:
            yield f"{prefix}{operation.name}", operation, ""


def _is_leaf(rule: Rule | None) -> bool:
    return rule is not None and rule.method == "call"


def _chooser(storage: StorageChoice, leaves: list):
    """(path, layer) -> the user's storage for it, or None."""
    if storage is None:
        return lambda path, layer: None
    if isinstance(storage, str):
        _check_choice(storage)
        return lambda path, layer: storage
    if isinstance(storage, Mapping):
        known = {name for path, layer, _ in leaves for name in (path, layer.name, type(layer))}
        for key, value in storage.items():
            _check_choice(value)
            if key not in known and not (isinstance(key, type) and any(isinstance(k, type) for k in known)):
                raise ValueError(
                    f"`storage` names a layer that the model does not have. Received: {key!r}. "
                    "Keys are layer names, paths as the report shows them, or layer classes."
                )
        choices = dict(storage)

        def from_mapping(path, layer):
            for key in (path, layer.name, type(layer)):
                if key in choices:
                    _check_offered(path, layer, choices[key])
                    return choices[key]
            return None

        return from_mapping
    if callable(storage):

        def from_function(path, layer):
            choice = storage(layer)
            if choice is not None:
                _check_choice(choice)
            return choice

        return from_function
    raise TypeError(
        "`storage` must be None, a string, a mapping from layers to strings or a function from a layer to "
        f"a string. Received: {storage!r} (of type {type(storage).__name__})."
    )


def _check_choice(choice: Any) -> None:
    if choice not in _CHOICES:
        raise ValueError(f"`storage` must be one of {', '.join(map(repr, _CHOICES))}. Received: {choice!r}.")


def _check_offered(path: str, layer: Any, choice: str) -> None:
    rule = find_rule(layer)
    offered = (*rule.storages, COMPRESS, KEEP) if rule else _CHOICES
    if choice not in offered:
        raise ValueError(
            f"`storage` gives {path!r} ({type(layer).__name__}) a storage that it does not have. Received: "
            f"{choice!r}. It can be held as {', '.join(map(repr, dict.fromkeys(offered)))}."
        )


def _plan_layer(path: str, layer: keras.layers.Layer, opaque: str, choice: str | None) -> Plan:
    rule = None if opaque else find_rule(layer)
    if rule is None:
        return Plan(layer, path, KEEP, None, opaque or _why_no_rule(layer))
    if choice == KEEP:
        return Plan(layer, path, KEEP, None, "storage='keep'")
    obstacle = rule.obstacle(layer)
    if obstacle:
        return Plan(layer, path, KEEP, None, obstacle)
    return Plan(layer, path, choice if choice in rule.storages else rule.storages[0], rule)


def _why_no_rule(layer: Any) -> str:
    if isinstance(layer, keras.layers.Lambda):
        return _ANY_FUNCTION
    if isinstance(layer, _keras.image_layers()):
        return _IMAGES
    reason = f"no rule for {type(layer).__name__}"
    return (
        f"{reason}; tf_comptrain.Compress(layer) opts in" if isinstance(layer, keras.layers.Layer) else reason
    )


def _drop_tensors_kept_anyway(model: keras.Model, plans: list[Plan]) -> list[Plan]:
    """A tensor that some consumer keeps as it is gains nothing from being compressed as well."""
    by_layer = {id(plan.layer): plan for plan in plans}
    consumers: dict[int, list] = {}
    for operation, inputs, _ in _keras.all_graph_calls(model):
        for x in inputs:
            consumers.setdefault(id(x), []).append(operation)

    def keeps_input(operation: Any) -> bool:
        plan = by_layer.get(id(operation))
        if plan is None:
            return isinstance(operation, keras.layers.Layer) and not isinstance(operation, keras.Model)
        return plan.rule is None and _saves_input(plan)

    dropped: dict[int, Plan] = {}
    for operations in consumers.values():
        keeper = next(filter(keeps_input, operations), None)
        for operation in operations:
            plan = by_layer.get(id(operation))
            if keeper is None or plan is None or plan.rule is None:
                continue
            saves = plan.rule.saves(plan.layer, plan.storage)
            if any(save.of == "input" and save.storage == COMPRESS for save in saves):
                reason = f"{keeper.name} keeps the same tensor"
                dropped[id(plan.layer)] = Plan(plan.layer, plan.path, KEEP, None, reason)
    return [dropped.get(id(plan.layer), plan) for plan in plans]


def _saves_input(plan: Plan) -> bool:
    """Whether a kept layer's plain gradient reads its input; unknown code is taken to do so."""
    if plan.storage != KEEP:
        return False
    rule = find_rule(plan.layer)
    if rule is None:
        return not isinstance(plan.layer, keras.layers.InputLayer)
    if rule.obstacle(plan.layer) and not getattr(plan.layer, "trainable", True):
        return False
    return any(save.of == "input" for save in rule.saves(plan.layer, rule.storages[0]))
