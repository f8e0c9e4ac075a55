"""Instruments the layers of a model so that their saved activations are held compressed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow import keras

from tf_comptrain import _keras, codecs, native
from tf_comptrain.codecs import Codec, ErrorBound
from tf_comptrain.compression.choice import (
    LayerChoice,
    StorageChoice,
    offloads_all,
    operations_chosen,
    parts_of_model,
    plan_model,
)
from tf_comptrain.compression.instrument import Chosen, Instrument
from tf_comptrain.compression.instrumentation import (
    Instrumentation,
    compressed_models,
    instrumentation,
    obstacle_of,
    wrapped_instruments,
)
from tf_comptrain.compression.report import Report, StepRows
from tf_comptrain.compression.rows import traced
from tf_comptrain.graph import HeldTensors, Wishes, after_gradient, in_place, sizes_obstacle
from tf_comptrain.storage import (
    KEEP,
    PolicyChoice,
    engine_of_step,
    holding_of,
    holdings_of,
    policy_of,
)

_EAGER = (
    "Model %r trains in eager mode, where there is no traced step to hold tensors in: it trains as plain Keras. "
    "Put the step under tf.function, or leave run_eagerly out of model.compile; tf_comptrain.Compress and "
    "tf_comptrain.Recompute work eagerly too."
)
_NOT_REWIRED = (
    "This was raised while tf_comptrain rewired a traced step, to hold what crosses into its backward pass. "
    'tf_comptrain.compress_model(model, storage="keep") leaves the step as plain Keras has it.'
)


# Set from the first compressed model on.
_watching: _keras.on_gradients | None = None


def compress_model(
    model: keras.Model,
    codec: str | Codec = "plane",
    error_bound: float | ErrorBound | None = None,
    storage: StorageChoice = None,
    policy: PolicyChoice = None,
) -> Report:
    """What `tf_comptrain.compress_model` does without a memory limit; its docstring says the rest."""
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`model` must be a keras.Model. Received: {model!r}. For one layer use tf_comptrain.Compress."
        )
    chosen_codec, chosen_policy = codecs.get(codec), policy_of(policy)
    bound = None if error_bound is None else ErrorBound.parse(error_bound)
    if model in compressed_models:
        raise ValueError(
            f"Model {model.name!r} is compressed already: call tf_comptrain.restore_model(model) first."
        )
    plans = plan_model(model, storage)
    native.ops()
    report = Report(
        model.name,
        (),
        obstacle_of(model),
        _keras.layers_without_xla(model),
        _renewed(model),
    )
    handle = Instrumentation(report, wrapped_instruments(model))
    if storage != KEEP:
        handle.held = _held_tensors(
            model,
            Wishes(
                chosen_codec,
                bound,
                holdings_of(operations_chosen(model, storage)),
                offloads_all(storage),
                chosen_policy,
            ),
        )
        for plan in plans:
            _override(plan, handle, handle.held, model, bound)
        is_exact = handle.held.wishes.asks_for_bits()
        _keras.override_train_step(model, after_gradient if is_exact else in_place, is_exact)
        reference = weakref.ref(handle)
        _keras.save_along(model, lambda: _variables_of(reference()))
    compressed_models[model] = handle
    _keras.forget_traces(model)
    return report


def _variables_of(handle: Instrumentation | None) -> dict[str, Any]:
    return {} if handle is None else handle.variables()


def _override(
    plan: LayerChoice,
    handle: Instrumentation,
    held: HeldTensors,
    model: keras.Model,
    bound: ErrorBound | None,
) -> None:
    """Overrides the `call` of one layer."""
    call: Any = None
    if plan.rule is not None:
        with _keras.strategy_scope(model):
            call = Instrument(plan.layer, plan.path, plan.rule, held.codec, bound)
        if call.sites:
            handle.wrapped[plan.layer] = call
    if plan.storage is not None:
        call = Chosen(plan.layer, holding_of(plan.storage), held, call)
    _keras.set_call(plan.layer, call)
    handle.overridden.append(plan.layer)


def _renewed(model: keras.Model) -> Callable[[], StepRows | None]:
    """Returns what is known of a model's step as it is now; None once it is restored or gone."""
    reference = weakref.ref(model)
    expected: list[StepRows] = []  # of one attempt

    def known() -> StepRows | None:
        model: Any = reference()
        handle = None if model is None else compressed_models.get(model)
        if handle is None or handle.held is None:
            return None
        if handle.held.crossings:
            return _traced(model, handle.held)
        if not expected and tf.executing_eagerly() and handle.report.obstacle is None:
            expected.append(_expected(model, handle))
        return expected[0] if expected else StepRows(())

    return known


def _traced(model: keras.Model, held: HeldTensors) -> StepRows:
    return traced(held, {path for path, _ in parts_of_model(model)})


def _expected(model: keras.Model, handle: Instrumentation) -> StepRows:
    """What will be held, by a trace of the model alone; nothing where it does not say what it takes."""
    specs = _keras.input_specs(model)
    held = handle.held
    if held is None or specs is None:
        return StepRows(())
    engine, obstacle = handle.report.engine, handle.report.obstacle
    with _keras.strategy_scope(model):
        handle.held = held.beside()

    def gradients(*inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            y = model(tf.nest.pack_sequence_as(specs, inputs), training=True)
        return tape.gradient(tf.nest.flatten(y), _keras.trainable_variables(model))

    try:
        step = tf.function(gradients, autograph=False, jit_compile=_keras.jit_compile(model))
        with _keras.own_trace():
            step.get_concrete_function(*tf.nest.flatten(specs))
        return _traced(model, handle.held)
    except Exception as error:  # the step that is trained may be another: that one's errors count
        logging.info("The report of %s waits for its first step: %s", model.name, error)
        return StepRows(())
    finally:
        handle.held = held
        handle.report.note_engine(engine, obstacle)


def _held_tensors(model: keras.Model, wishes: Wishes) -> HeldTensors:
    global _watching
    if _watching is None:
        _watching = _keras.on_gradients(_rewire, _say_eager, lambda: bool(compressed_models))
        _watching.begin()
    reference = weakref.ref(model)
    with _keras.strategy_scope(model):
        return HeldTensors(wishes, lambda: getattr(reference(), "variables", []))


def _say_eager(sources: Sequence[Any]) -> None:
    """Says of each compressed model once that eager mode holds nothing."""
    handles = {id(getattr(source, "handle", None)) for source in sources}
    for model, instrumented in list(compressed_models.items()):
        if instrumented.held is None or handles.isdisjoint(instrumented.held.weights()):
            continue
        instrumented.report.note_engine(
            "eager mode", "in eager mode there is no traced step to hold tensors in"
        )
        if not instrumented.is_eager:
            instrumented.is_eager = True
            logging.warning(_EAGER, model.name)


def _rewire(backward: _keras.BackwardPass) -> dict[str, tf.Tensor]:
    """Holds what crosses into a backward pass that reads variables of a compressed model."""
    engine = engine_of_step(backward)
    if engine.why_plain is not None or not backward.seeds or not _trains(backward):
        return {}
    deciding, others = _handles_of(backward)
    for handle in deciding:
        for other in others:
            other.report.note_teller(handle.report.model)
        held = handle.held
        if held is None:
            continue
        why_plain = sizes_obstacle(backward) if backward.xla else None
        handle.note_engine(engine, why_plain, held.wishes.codecs())
        if why_plain is not None:
            continue
        try:
            return held.rewire(backward)
        except Exception as error:
            _keras.add_to_message(error, _NOT_REWIRED)
            raise
    return {}


def _trains(backward: _keras.BackwardPass) -> bool:
    """Whether a gradient is one of training: forces and saliency are gradients of inputs, which inference makes too."""
    is_of_weights = any(hasattr(source, "handle") for source in backward.sources)
    return is_of_weights or backward.recorded or bool(_keras.scope_says())


def _handles_of(backward: _keras.BackwardPass) -> tuple[list[Instrumentation], list[Instrumentation]]:
    """Whose wishes a backward pass follows: those of the smallest model that has most of the sources. The others.

    Of no compressed model's weights, as where a generator trains through a discriminator: of each model that the step
    reads.
    """
    wanted = {id(getattr(source, "handle", None)) for source in backward.sources}
    weights = [
        (_keras.by_handle(model.variables), handle) for model, handle in list(compressed_models.items())
    ]
    owners = [
        (-len(wanted & ids.keys()), len(ids), number)
        for number, (ids, _) in enumerate(weights)
        if wanted & ids.keys()
    ]
    if owners:
        first, *others = [weights[number][1] for *_, number in sorted(owners)]
        return [first], others
    held = [(handle, handle.held) for _, handle in weights if handle.held is not None]
    return [handle for handle, its in held if its.is_of(backward.graph)], []


def report(model: keras.Model) -> Report:
    """How the saved activations of a compressed model are held: what `compress_model` returned for it.

    Args:
      model: A model that `compress_model` took, or one with `Compress` wrappers.

    Returns:
      A `Report`, which has what crosses in the traced step once there is one; bytes are predicted, for one sample.

    Raises:
      ValueError: The model is not compressed.

    Examples:
      >>> ct.compress_model(model)
      >>> model.fit(images, labels)
      >>> print(ct.report(model))
    """
    return instrumentation(model).report


def restore_model(model: keras.Model) -> None:
    """Undoes `compress_model`; see `tf_comptrain.restore_model`.

    Raises:
      ValueError: The model is not compressed.
    """
    if model not in compressed_models:
        raise ValueError(
            f"Model {model.name!r} is not compressed by compress_model: there is nothing to undo."
        )
    others = (other for other in compressed_models.values() if other is not compressed_models[model])
    shared = {id(layer) for other in others for layer in other.overridden}
    for layer in compressed_models[model].overridden:
        if id(layer) not in shared:
            _keras.reset_call(layer)
    _keras.reset_train_step(model)
    _keras.save_alone(model)
    _keras.forget_runs(model)
    _keras.reset_rate(getattr(model, "optimizer", None))
    compressed_models[model].report.end()
    del compressed_models[model]
    _keras.forget_traces(model)
