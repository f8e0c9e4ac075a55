"""Models whose graph, variables and train step are divided: the graph run by hand, variables moved.

Private: `Functional`, `operation_fn` (Keras 3.15).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain._keras.overridden_step import override_train_step, reset_train_step
from tf_comptrain._keras.train_step import build_optimizer
from tf_comptrain._keras.version import KERAS_3

if KERAS_3:
    from keras.src.models.functional import Functional, operation_fn


def run_graph(
    model: keras.Model, inputs: Any, enter: Callable, run: Callable, leave: Callable, **context: Any
) -> Any:
    """Calls a functional model, of which somebody else runs each operation.

    Args:
      model: The functional model.
      inputs: As its `call` takes them.
      enter: Makes of each input what operations are given in its place; no structure.
      run: Called for each call in the graph, inputs first, with the operation, a function that calls it, and the
        arguments; returns what stands for each output.
      leave: Makes a tensor of what stands for an output of the model.
      **context: Of Keras' call: training.

    Returns:
      The model's output.

    Private: `Functional._standardize_inputs`, `Functional._run_through_graph` (Keras 3.15).
    """

    def placed(operation: Any) -> Callable:
        return functools.partial(run, operation, operation_fn(operation, **context))

    flat = [enter(tensor) for tensor in model._standardize_inputs(inputs)]
    outputs = tf.nest.map_structure(leave, model._run_through_graph(flat, operation_fn=placed))
    return outputs[0] if isinstance(outputs, (list, tuple)) and len(outputs) == 1 else outputs


def runs_its_graph(model: keras.Model) -> bool:
    """Whether a model's call is Keras' own, through the graph that it was made of."""
    return isinstance(model, Functional) and type(model).call is Functional.call


def set_masks(model: keras.Model, inputs: Any, mask: Any) -> None:
    """Gives the inputs of a functional model the masks of its call.

    Private: `Functional._standardize_inputs` (Keras 3.15).
    """
    if mask is not None:
        for tensor, one in zip(model._standardize_inputs(inputs), tf.nest.flatten(mask)):
            set_mask(tensor, one)


def mask_of(tensor: Any) -> Any:
    """Keras' mask of a tensor; None where it has none.

    Private: `_keras_mask` of tensors (Keras 3.15, 2.15).
    """
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Gives a tensor Keras' mask; None: leaves it as it is.

    Private: `_keras_mask` of tensors (Keras 3.15, 2.15).
    """
    if mask is not None:
        tensor._keras_mask = mask


def move_weight(variable: Any, device: str, optimizer: Any = None) -> None:
    """Makes a weight's value anew on a device, and what the optimizer keeps for it; traces know only the old ones.

    Private: `Optimizer._trainable_variables_indices`, `Optimizer._var_key` (Keras 3.15).
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    numbers = getattr(optimizer, "_trainable_variables_indices", {})
    number = numbers.pop(optimizer._var_key(variable), None) if numbers else None
    _move(variable, device)
    if number is None:
        return
    numbers[optimizer._var_key(variable)] = number
    for slot in _slots_of(optimizer, number):
        _move(slot, device)


def weights_and_slots(model: keras.Model) -> list[Any]:
    """The weights that a step changes, and what the optimizer keeps for each."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    weights = model.trainable_variables
    return [*weights, *(slot for number in range(len(weights)) for slot in _slots_of(optimizer, number))]


def _slots_of(optimizer: Any, number: int) -> list[Any]:
    """What an optimizer keeps for the weight of a number.

    Private: `Optimizer._trainable_variables` and which lists of variables it has (Keras 3.15).
    """
    weights = optimizer._trainable_variables
    lists = [some for some in vars(optimizer).values() if isinstance(some, list) and some is not weights]
    slots = (some[number] for some in lists if len(some) == len(weights))
    return [slot for slot in slots if isinstance(slot, keras.Variable) and slot is not weights[number]]


def move_slots(model: keras.Model) -> None:
    """Puts what the optimizer keeps for each weight where the weight is. Called before it is first read in a trace."""
    with tf.init_scope():
        build_optimizer(model)
        for weight in model.trainable_variables:
            move_weight(weight, weight.value.device, model.optimizer)


def _move(variable: Any, device: str) -> None:
    """Makes the value of a variable anew on a device, where it is on another.

    Private: `Variable._initialize` (Keras 3.15).
    """
    if variable.value.device != device:
        with tf.device(device):
            variable._initialize(variable.value.read_value())


def reductions_of(model: keras.Model) -> set[str]:
    """How the losses of `compile` make one number of those of the samples.

    Private: `Model._compile_loss`, `CompileLoss._user_loss` (Keras 3.15).
    """
    compiled = getattr(model, "_compile_loss", None)
    losses = getattr(compiled, "_user_loss", None)
    flat = [loss for loss in tf.nest.flatten(losses) if isinstance(loss, keras.losses.Loss)]
    return {loss.reduction for loss in flat}


def set_step(model: keras.Model, step: Callable[[Any, Any], Any], update: Callable[..., Any]) -> None:
    """Makes `step(model, data)` what the train step of a model calls, compressed or not.

    Args:
      model: The model.
      step: The train step.
      update: As for `override_train_step`.
    """
    model.__dict__["_comptrain_step"] = step
    override_train_step(model, update)


def step_set(model: keras.Model) -> Callable[[Any, Any], Any] | None:
    """What `set_step` was given; None where it was not called."""
    return model.__dict__.get("_comptrain_step")


def reset_step(model: keras.Model, stays: bool) -> None:
    """Takes back `set_step`.

    Args:
      model: The model.
      stays: Whether the train step stays overridden, as that of a compressed model.
    """
    model.__dict__.pop("_comptrain_step", None)
    if not stays:
        reset_train_step(model)
