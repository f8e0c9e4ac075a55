"""The train step: loss, optimizer, variables.

Private: `global_state` (Keras 3.15); `autograph.impl.api` (TensorFlow 2.21, 2.15).
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.python.autograph.impl import api as autograph

from tf_comptrain._keras.layers import (
    VARIABLES,
    attributes,
    forget_traces,
    jit_compile,
    strategy_scope,
    sublayers,
)
from tf_comptrain._keras.overridden_step import has_own_train_step, step_of_instance, step_scope
from tf_comptrain._keras.scopes import own_trace
from tf_comptrain._keras.version import KERAS_3
from tf_comptrain._keras.workers import are_workers, of_all_workers, worker_number

if KERAS_3:
    from keras.src.backend.common import global_state


def is_compiled(model: keras.Model) -> bool:
    """Whether `model.compile` was called.

    Private: `Model._is_compiled` (Keras 2.15).
    """
    return bool(getattr(model, "compiled" if KERAS_3 else "_is_compiled", False))


def require_compiled(model: keras.Model) -> None:
    """Says that a model has to be compiled.

    Raises:
      TypeError: It is no model.
      ValueError: It is not compiled.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a keras.Model. Received: {model!r}.")
    if not is_compiled(model):
        raise ValueError(f"Model {model.name!r} is not compiled: call model.compile(...) first.")


def has_strategy(model: keras.Model) -> bool:
    """Whether a model was made in the scope of a tf.distribute strategy.

    Private: `Model._distribute_strategy` (Keras 3.15, 2.15).
    """
    return getattr(model, "_distribute_strategy", None) is not None


def train_step_runner(model: keras.Model, x: Any, y: Any, copies: bool = False) -> Callable[[], Any]:
    """A function that runs the model's compiled train step on one batch of tensors; the model is built for it.

    With `copies` each run has one of its own, while that of the one before is still there, as in `fit`. Keras 3.
    """
    build_for_step(model, x, y)
    model.make_train_function()
    data = keras.utils.pack_x_y_sample_weight(x, y)
    if not KERAS_3:
        batches = iter(tf.data.Dataset.from_tensors(data).repeat())
        return lambda: model.train_function(batches)
    if not copies:
        return lambda: model.train_function(iter([data] * steps_at_once(model)))
    alive: list[Any] = []

    def copied(value: Any) -> Any:
        return tf.raw_ops.DeepCopy(x=value) if tf.is_tensor(value) and value.dtype != tf.string else value

    def run() -> Any:
        alive[:] = [tf.nest.map_structure(copied, data) for _ in range(steps_at_once(model))]
        return model.train_function(iter(alive))

    return run


def steps_at_once(model: keras.Model) -> int:
    """Training steps in one call of the model's train function.

    Private: `Model._steps_per_execution` (Keras 2.15).
    """
    return model.steps_per_execution if KERAS_3 else int(model._steps_per_execution.numpy())


def build_for_step(model: keras.Model, x: Any, y: Any) -> None:
    """Makes every variable of a train step now (weights, slots, metrics), so that all exist before one runs.

    Private: `Model._symbolic_build` (Keras 3.15).
    """
    if has_own_train_step(model) and not has_strategy(
        model
    ):  # replicas make none; Keras builds the model as below
        trace_train_step(model, x, y)  # what it calls, and with which optimizers, only it knows
        return
    with strategy_scope(model):
        if KERAS_3 and not all(layer.built for layer in sublayers(model)):
            model._symbolic_build(data_batch=(x, y))
        build_optimizer(model)


def trace_train_step(
    model: keras.Model, x: Any, y: Any, results: Callable[[], Any] = lambda: ()
) -> Callable[[], Any]:
    """Traces the model's train step anew, as Keras does for `fit`, without running it.

    Args:
      model: A compiled model.
      x: One batch of inputs, tensors.
      y: Its targets; None for a train step that takes none.
      results: Called at the end of the trace, in its graph: what a run is to return.

    Returns:
      A function that runs the step, updates and all.
    """
    data = keras.utils.pack_x_y_sample_weight(x, y)

    def step(data: Any) -> Any:
        model.distribute_strategy.run(_fresh_train_step(model), args=(data,))
        return results()

    with own_trace():
        traced = tf.function(step, autograph=False, jit_compile=jit_compile(model)).get_concrete_function(
            data
        )
    return lambda: traced(data)


def lowered_train_step(model: keras.Model, x: Any, y: Any) -> bytes:
    """The model's train step as a program of XLA's, traced anew and neither compiled nor run.

    Args:
      model: A compiled model whose variables are all made, that XLA compiles.
      x: One batch of inputs, tensors or their TensorSpecs.
      y: Its targets; None for a train step that takes none.

    Returns:
      An HloModuleProto.
    """
    data = keras.utils.pack_x_y_sample_weight(x, y)

    def step(*parts: Any) -> Any:  # TensorSpecs may be arguments, and not in structures
        model.distribute_strategy.run(_fresh_train_step(model), args=(tf.nest.pack_sequence_as(data, parts),))
        return ()

    lowered = tf.function(step, autograph=False, jit_compile=True)
    with own_trace():
        return lowered.experimental_get_compiler_ir(*tf.nest.flatten(data))(stage="hlo_serialized")


def _fresh_train_step(model: keras.Model) -> Callable[..., Any]:
    """The train step without a tf.function around it, which would answer with an earlier trace."""
    own = step_of_instance(model)
    python = getattr(own or type(model).train_step, "python_function", None)
    if python is None:
        return model.train_step
    scope = step_scope if "_comptrain_update" in model.__dict__ else contextlib.nullcontext
    bound = () if own else (model,)

    def train_step(*args: Any, **kwargs: Any) -> Any:
        with scope(model):
            return autograph.convert(recursive=True)(python)(*bound, *args, **kwargs)

    return train_step


@contextlib.contextmanager
def targets_forgotten(model: keras.Model) -> Iterator[None]:
    """Puts losses and metrics back that no step has built before: they are built for the structure of its targets.

    Private: `Model._compile_loss`, `Model._compile_metrics`, `CompileLoss._user_loss`,
      `CompileLoss._user_loss_weights`, `CompileMetrics._user_metrics`, `CompileMetrics._user_weighted_metrics`
      (Keras 3.15).
    """
    given = {
        "_compile_loss": ("_user_loss", "_user_loss_weights"),
        "_compile_metrics": ("_user_metrics", "_user_weighted_metrics"),
    }
    found = {name: vars(model).get(name) for name in given if KERAS_3}
    unbuilt = {name: part for name, part in found.items() if part is not None and not part.built}
    try:
        yield
    finally:
        for name, part in unbuilt.items():
            of_user = (getattr(part, field) for field in given[name])
            vars(model)[name] = type(part)(*of_user, output_names=part.output_names)
        if unbuilt:
            forget_traces(model)


def call_in_training(model: keras.Model, x: Any) -> Any:
    """The model's outputs, called as Keras' train step calls it.

    Private: `Model._call_has_training_arg` (Keras 3.15).
    """
    return model(x, training=True) if model._call_has_training_arg else model(x)


def loss_in_training(model: keras.Model, x: Any, y: Any, y_pred: Any, weight: Any) -> Any:
    """The loss as Keras' train step computes it, without the scale of mixed precision.

    Private: `Model._compute_loss` (Keras 3.15).
    """
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=weight, training=True)


def note_loss(model: keras.Model, loss: Any, samples: Any) -> None:
    """Adds a loss of so many samples to the mean that the logs call `loss`.

    Private: `Model._loss_tracker` (Keras 3.15).
    """
    model._loss_tracker.update_state(loss, sample_weight=samples)


def build_optimizer(model: keras.Model) -> None:
    """Makes the optimizer's slots now, so that they exist before a step is measured.

    Not for a model that has no weights before its first step. Addons' optimizers are of the older kind,
    without `build`.

    Private: `OptimizerV2._create_all_weights` (Keras 2.15).
    """
    optimizer, variables = model.optimizer, model.trainable_variables
    if not all(layer.built for layer in sublayers(model)):
        return
    if not hasattr(optimizer, "build"):
        optimizer._create_all_weights(variables)
    elif not (KERAS_3 and optimizer.built):  # Keras 2 looks itself
        optimizer.build(variables)


def all_variables(model: keras.Model) -> list:
    """Weights, optimizer slots, metrics and seeds."""
    variables = [*model.variables, *_slots(model.optimizer)]
    for metric in model.metrics:
        variables += metric.variables
    return list({id(v): v for v in variables}.values())


def weight_names(model: keras.Model) -> list[str]:
    """Name and shape of each floating weight; of a model that is not built none."""
    if not model.built:
        return []
    floating = (v for v in model.weights if tf.as_dtype(v.dtype).is_floating)
    return [f"{v.path if KERAS_3 else v.name}: {tuple(v.shape)}" for v in floating]


def unnumbered(name: str) -> str:
    """The name without the numbers that layers get of which there are several: conv2d_3/input -> conv2d/input"""
    return re.sub(r"(_\d+)+(?=[/:]|$)", "", name)


def _slots(optimizer: Any) -> list:
    """Variables of an optimizer; None has none."""
    if optimizer is None:
        return []
    return list(optimizer.variables if KERAS_3 else optimizer.variables())


def step_variables(model: keras.Model) -> list:
    """All that a train step of the model may change: `all_variables`, and what its own code holds besides.

    That are slots of optimizers which are attributes, TensorFlow's own variables and generators, and Keras' seed for
    random numbers of no layer.
    """
    variables = all_variables(model)
    for value in attributes(model, *sublayers(model)):
        if isinstance(value, keras.optimizers.Optimizer):
            variables += _slots(value)
        elif isinstance(value, VARIABLES):
            variables.append(value)
        elif isinstance(value, tf.random.Generator):
            variables.append(value.state)
    generator = global_state.get_global_attribute("global_seed_generator") if KERAS_3 else None
    if generator is not None:
        variables.append(generator.state)
    return list({id(v): v for v in variables}.values())


def optimizers_of(model: keras.Model) -> list:
    """The optimizer of `compile`, and those that are attributes of the model."""
    return [value for value in attributes(model) if isinstance(value, keras.optimizers.Optimizer)]


def replica_parts(variable: Any) -> list:
    """The variables of the replicas where each has a value of its own; else the variable itself.

    In the place of those that are in other processes, None.
    """
    value = _value_of(variable)
    own = getattr(value, "synchronization", None) == tf.VariableSynchronization.ON_READ
    if not own or not isinstance(value, tf.distribute.DistributedValues):
        return [variable]
    parts, strategy = list(value.values), value.distribute_strategy
    if not are_workers(strategy):
        return parts
    before = worker_number(strategy) * len(parts)
    after = strategy.num_replicas_in_sync - before - len(parts)
    return [None] * before + parts + [None] * after


def replica_values(variables: Sequence[Any]) -> list[np.ndarray]:
    """Of the `replica_parts` of all. Those of other processes they send, and are sent: called together then."""
    parts = [replica_parts(variable) for variable in variables]
    values = [[np.array(part.numpy()) for part in some if part is not None] for some in parts]
    shared = [k for k, some in enumerate(parts) if any(part is None for part in some)]
    if shared:
        own = [value for k in shared for value in values[k]]
        everywhere = [iter(found) for found in of_all_workers(_strategy_of(variables[shared[0]]), own)]
        for k in shared:
            values[k] = [next(worker) for worker in everywhere for _ in values[k]]
    return [value for some in values for value in some]


def moving_statistics(model: keras.Model) -> list:
    """What layers average from step to step (batch normalization's mean): Keras has each replica average its own.

    Private: `Layer._non_trainable_variables` (Keras 3.15, 2.15).
    """
    found = [v for layer in (model, *sublayers(model)) for v in layer._non_trainable_variables]
    return [v for v in {id(v): v for v in found}.values() if tf.as_dtype(v.dtype).is_floating]


def mean_of_replicas(variable: Any) -> np.ndarray:
    """The value of a variable outside of a step; of workers, which have the same, this one's."""
    return np.mean([part.numpy() for part in replica_parts(variable) if part is not None], axis=0)


def _strategy_of(variable: Any) -> Any:
    return _value_of(variable).distribute_strategy


def _value_of(variable: Any) -> Any:
    """TensorFlow's variable: one of Keras 3 has it inside."""
    return variable.value if KERAS_3 and isinstance(variable, keras.Variable) else variable


def trainable_variables(model: keras.Model) -> list:
    """As tf.Variables: what a GradientTape takes in both Keras versions."""
    return [v.value if KERAS_3 else v for v in model.trainable_variables]


def bytes_of(*variables: Any) -> int:
    """Of Keras' variables, or TensorFlow's."""
    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)


def abandon_buffers(variables: Iterable[Any]) -> None:
    """Makes it safe to assign to variables after an XLA step that failed.

    XLA takes the memory of the variables it updates, and frees it when the step fails, while
    TensorFlow still holds it: to assign would free it again, and crash. One more handle, kept for
    good, prevents that. The values are not looked at.
    """
    for variable in variables:
        value = _value_of(variable)
        for part in value.values if isinstance(value, tf.distribute.DistributedValues) else [value]:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part.read_value()))
