"""Models whose graph, variables and train step are divided: the graph run by hand, variables moved, microbatches."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import native
from tf_comptrain._keras.train_step import build_optimizer, override_train_step, reset_train_step
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
    """Gives the inputs of a functional model the masks of its call."""
    if mask is not None:
        for tensor, one in zip(model._standardize_inputs(inputs), tf.nest.flatten(mask)):
            set_mask(tensor, one)


def mask_of(tensor: Any) -> Any:
    """Keras' mask of a tensor; None where it has none."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    if mask is not None:
        tensor._keras_mask = mask


def move_weight(variable: Any, device: str, optimizer: Any = None) -> None:
    """Makes a weight's value anew on a device, and what the optimizer keeps for it; traces know only the old ones."""
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
    if variable.value.device != device:
        with tf.device(device):
            variable._initialize(variable.value.read_value())


class Schedule(Protocol):
    """What `train_in_microbatches` tells of its parts, and asks."""

    last: str  # device of losses and metrics

    def begin(self, number: int) -> None:
        """Called before the forward pass of each part."""

    def check(self, outputs: Any) -> None:
        """Called with the model's outputs for each part."""

    def stage_inputs(self) -> Sequence[tf.Tensor]:
        """What tensors of that forward pass gradients are wanted of, beside the weights."""

    def end(self, weights: Sequence[Any], sums: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Called after each backward pass: the weights, the sums of their gradients, those of `stage_inputs()`."""

    def gradients(self) -> contextlib.AbstractContextManager:
        """Around a backward pass."""

    def updates(self) -> contextlib.AbstractContextManager:
        """Around the optimizer's work."""


def train_in_microbatches(model: keras.Model, data: Any, count: int, schedule: Schedule) -> Any:
    """Keras' train step, by parts of the batch whose gradients are added up; one update of the weights.

    Loss, gradients and metrics are those of the whole batch where they are means over samples.

    Args:
      model: The model.
      data: As for its `train_step`.
      count: How many parts.
      schedule: See `Schedule`.

    Returns:
      The logs.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    batch = batch_of(x)
    weights = model.trainable_variables
    sums: list[Any] = [None] * len(weights)
    logs: Any = {}
    for number in range(count):
        own_x, own_y, own_weight = _part_of((x, y, weight), batch, number, count)
        schedule.begin(number)
        with tf.GradientTape() as tape:
            found = model(own_x, training=True) if model._call_has_training_arg else model(own_x)
            schedule.check(found)
            with tf.device(schedule.last):
                loss = model._compute_loss(
                    x=own_x, y=own_y, y_pred=found, sample_weight=own_weight, training=True
                )
                samples = batch_of(own_x)
                model._loss_tracker.update_state(loss, sample_weight=samples)
                if model.optimizer is not None:
                    loss = model.optimizer.scale_loss(loss)
                if count > 1:
                    loss *= tf.cast(samples / batch, loss.dtype)
            inputs = list(schedule.stage_inputs())
        with schedule.gradients():
            made = tape.gradient(loss, [*weights, *inputs])
        sums = [_sum(*pair) for pair in zip(sums, made)]
        schedule.end(weights, sums, made[len(weights) :])
        with tf.device(schedule.last):
            logs = model.compute_metrics(own_x, own_y, found, sample_weight=own_weight)
    if weights:
        with schedule.updates():
            model.optimizer.apply_gradients(zip(sums, weights))
    return logs


def reductions_of(model: keras.Model) -> set[str]:
    """How the losses of `compile` make one number of those of the samples."""
    compiled = getattr(model, "_compile_loss", None)
    losses = getattr(compiled, "_user_loss", None)
    flat = [loss for loss in tf.nest.flatten(losses) if isinstance(loss, keras.losses.Loss)]
    return {loss.reduction for loss in flat}


def batch_of(values: Any) -> Any:
    """Number of samples of nested tensors, or a tensor of it."""
    first = next(tensor for tensor in tf.nest.flatten(values) if tensor is not None)
    return first.shape[0] or tf.shape(first)[0]


def _part_of(values: Any, batch: Any, number: int, count: int) -> Any:
    if count == 1:
        return values
    start, stop = batch * number // count, batch * (number + 1) // count
    return tf.nest.map_structure(lambda value: None if value is None else value[start:stop], values)


def _sum(total: Any, gradient: Any) -> Any:
    if total is None or gradient is None:
        return gradient if total is None else total
    if isinstance(total, tf.IndexedSlices) and isinstance(gradient, tf.IndexedSlices):
        values = tf.concat([total.values, gradient.values], 0)
        return tf.IndexedSlices(values, tf.concat([total.indices, gradient.indices], 0), total.dense_shape)
    total, gradient = tf.convert_to_tensor(total), tf.convert_to_tensor(gradient)
    with tf.device(total.device):
        # TensorFlow's optimizer makes one addition of a chain of them, for which all gradients would wait.
        return native.ops().comptrain_fence([total + gradient])[0]


def set_step(model: keras.Model, step: Callable[[Any, Any], Any]) -> None:
    """Makes `step(model, data)` what the train step of a model calls, compressed or not."""
    model.__dict__["_comptrain_step"] = step
    override_train_step(model)


def reset_step(model: keras.Model, stays: bool) -> None:
    """Takes back `set_step`.

    Args:
      model: The model.
      stays: Whether the train step stays overridden, as that of a compressed model.
    """
    model.__dict__.pop("_comptrain_step", None)
    if not stays:
        reset_train_step(model)
