"""A train step in microbatches: their gradients are added up, and the weights updated once."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.compression.instrumentation import is_compressed
from tf_comptrain.compression.restored_state import state_restored
from tf_comptrain.graph import after_gradient, microbatch_scope
from tf_comptrain.memory.batches import random_batch

_MASKED = "the outputs have a mask of Keras', and microbatches have different numbers of values that count"
_ROUNDING = {2: 1e-2, 4: 1e-4, 8: 1e-4}  # of losses, by bytes of the type that is computed in
_LEFT_OUT = (0, -1, -100, 255)  # targets that losses commonly leave out
_MEANS = ("sum_over_batch_size", "mean", None)


class Schedule:
    """The order of the microbatches, and where each is computed; as it is, TensorFlow's choice.

    Args:
      model: The model.

    Attributes:
      model: As given.
      last: The device of the losses; None: where TensorFlow puts them.
    """

    last: str | None = None

    def __init__(self, model: keras.Model):
        self.model = model

    def begin(self, number: int, part: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
        """Before a forward pass: the data and the gradients' sums so far, to be used in their stead."""
        return part, sums

    def check(self, outputs: Any) -> None:
        """That the loss of the model's outputs is a mean over samples."""
        if any(_keras.mask_of(tensor) is not None for tensor in tf.nest.flatten(outputs)):
            raise ValueError(
                f"The outputs of a model in microbatches must have no mask of Keras': the loss of {self.model.name!r} "
                "is a mean over those of its values that are not masked, and microbatches have different numbers of "
                "them. Use sample_weight, or train on whole batches."
            )

    def stage_inputs(self) -> list[tf.Tensor]:
        """What tensors of that forward pass gradients are wanted of, beside the weights."""
        return []

    def end(self, weights: Sequence[Any], sums: Sequence[Any], gradients: Sequence[Any]) -> None:
        """After a backward pass: weights, sums of their gradients, gradients of `stage_inputs()`."""

    def gradients(self) -> AbstractContextManager[None]:
        """Around a backward pass."""
        return contextlib.nullcontext()

    def updates(self) -> AbstractContextManager[None]:
        """Around the optimizer's work."""
        return contextlib.nullcontext()


class OneAfterTheOther(Schedule):
    """On one device: a microbatch begins when the gradients of the one before it are added up."""

    def begin(self, number: int, part: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
        if number == 0:
            return part, sums
        flat = tf.nest.flatten([part, sums], expand_composites=True)
        # Of constants, as the shape of a sparse gradient is, XLA needs the values when it compiles.
        at = [i for i, value in enumerate(flat) if value is not None and tf.get_static_value(value) is None]
        for i, value in zip(at, native.ops().comptrain_fence([flat[i] for i in at])):
            flat[i] = value
        part, sums = tf.nest.pack_sequence_as([part, sums], flat, expand_composites=True)
        return part, sums


def obstacle(model: keras.Model) -> str:
    """Why microbatches would not have the gradient of the whole batch; "" where they have."""
    if _keras.has_own_train_step(model):
        return "the model has a `train_step` of its own"
    if _keras.step_set(model) is not None and microbatches_of(model) == 1:
        return "the model is placed on stages"
    others = _other_reductions(model)
    return f"a loss is no mean over samples (reduction={others!r})" if others else seen_obstacle(model)


def seen_obstacle(model: keras.Model) -> str:
    """The same by losses of random samples; "" where there are none, or where they differ from call to call."""
    try:
        x, y = random_batch(model, 1)
    except ValueError:  # no input shapes
        return ""
    return _obstacle_of_twice(model, x, y) or _obstacle_of_left_out(model)


def _obstacle_of_twice(model: keras.Model, x: Any, y: Any) -> str:
    """Of losses that are no mean over samples, and of masks."""

    def twice(value: Any) -> Any:
        return None if value is None else tf.concat([value, value], 0)

    def losses_of(x: Any, y: Any) -> np.ndarray:
        """The whole loss, and each that a layer has added to it."""
        whole = _keras.loss_in_training(model, x, y, model(x, training=False), None)
        return np.array([float(loss) for loss in (whole, *model.losses)])

    with state_restored(model):
        try:
            if any(
                _keras.mask_of(tensor) is not None for tensor in tf.nest.flatten(model(x, training=False))
            ):
                return _MASKED
            one, again = losses_of(x, y), losses_of(x, y)
            two = losses_of(*tf.nest.map_structure(twice, (x, y)))
        except Exception:  # whatever a user's loss raises that random samples are no data for
            return ""
    rounding = _ROUNDING[tf.as_dtype(model.compute_dtype).size] * np.abs(one)
    if (one != again).any() or (np.abs(two - one) <= rounding).all():
        return ""
    return "a loss of a sample twice is not that of the sample: it is no mean over samples"


def _obstacle_of_left_out(model: keras.Model) -> str:
    """Of losses that are means over less than all samples' values, as with `ignore_class`."""
    x, y = random_batch(model, 2)

    def losses_of(y: Any, outputs: Any) -> list[float]:
        """Of both samples, and of each."""
        parts = (_cut((x, y, outputs), part) for part in (slice(0, 2), slice(0, 1), slice(1, 2)))
        return [float(_keras.loss_in_training(model, *part, None)) for part in parts]

    with state_restored(model):
        try:
            outputs = model(x, training=False)
        except Exception:  # random samples are no data for the model
            return ""
        for value in _LEFT_OUT:
            try:
                (both, *each), again = (losses_of(_half(y, value), outputs) for _ in range(2))
            except Exception:  # no target of this loss
                continue
            rounding = _ROUNDING[tf.as_dtype(model.compute_dtype).size] * np.abs(both)
            if [both, *each] == again and np.abs(both - np.mean(each)) > rounding:
                why = "it leaves some out, or is no mean over samples"
                return f"a loss of two samples, one with targets of {value}, is not the mean of theirs: {why}"
    return ""


def _half(targets: Any, value: int) -> Any:
    """The same of ones, and half of the second sample's of that value."""

    def filled(target: tf.Tensor) -> tf.Tensor:
        flat = np.ones((2, target.shape.num_elements() // 2), target.dtype.as_numpy_dtype)
        flat[1, : -(-flat.shape[1] // 2)] = value
        return tf.reshape(flat, target.shape)

    return tf.nest.map_structure(filled, targets)


def _cut(values: tuple[Any, Any, Any], part: slice) -> tuple[Any, Any, Any]:
    return tf.nest.map_structure(lambda value: value[part], values)


def set_microbatches(model: keras.Model, count: int) -> None:
    """Makes the model's train step one of `count` microbatches on one device; of one: its own again.

    Loss, gradients and metrics are those of the whole batch up to rounding, where they are means over
    samples. Batch normalization takes its statistics from each microbatch; dropout draws anew for each.
    """
    if microbatches_of(model) > 1:
        _keras.reset_step(model, stays=is_compressed(model))
    if count > 1:
        _keras.set_step(model, functools.partial(_step, count=count), after_gradient)
    _keras.forget_traces(model)


def microbatches_of(model: keras.Model) -> int:
    """What `set_microbatches` set; 1 where it did not."""
    step = _keras.step_set(model)
    return step.keywords["count"] if isinstance(step, functools.partial) and step.func is _step else 1


def _step(model: keras.Model, data: Any, *, count: int) -> Any:
    check_losses(model)
    return train_by_parts(model, data, count, OneAfterTheOther(model))


def train_by_parts(model: keras.Model, data: Any, count: int, schedule: Schedule) -> Any:
    """Keras' train step, by parts of the batch whose gradients are added up; one update of the weights.

    Loss, gradients and metrics are those of the whole batch where they are means over samples.

    Args:
      model: The model.
      data: As for its `train_step`.
      count: How many parts.
      schedule: Their order, and where each is computed.

    Returns:
      The logs.
    """
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    batch = samples_of(x)
    weights = model.trainable_variables
    sums: list[Any] = [None] * len(weights)
    logs: Any = {}
    for number in range(count):
        part, samples = _part_of((x, y, weight), batch, number, count)
        (own_x, own_y, own_weight), sums = schedule.begin(number, part, sums)
        with _names_of(number):
            with tf.GradientTape() as tape:
                found = _keras.call_in_training(model, own_x)
                schedule.check(found)
                with tf.device(schedule.last):
                    loss = _keras.loss_in_training(model, own_x, own_y, found, own_weight)
                    _keras.note_loss(model, loss, samples)
                    if model.optimizer is not None:
                        loss = model.optimizer.scale_loss(loss)
                    if count > 1:
                        loss *= _share(samples / batch, loss)
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


def _names_of(number: int) -> contextlib.AbstractContextManager:
    """Around a microbatch, whose operations then have the names that the first one's have."""
    return tf.name_scope(microbatch_scope(number)) if number else contextlib.nullcontext()


def samples_of(values: Any) -> Any:
    """Number of samples of nested tensors, or a tensor of it."""
    first = next(tensor for tensor in tf.nest.flatten(values) if tensor is not None)
    return first.shape[0] or tf.shape(first)[0]


def _part_of(values: Any, batch: Any, number: int, count: int) -> tuple[Any, Any]:
    """(A microbatch, its number of samples), which is 0 of some where a batch has fewer samples than parts.

    Kernels fail on tensors without any: such a part has a sample that does not count. Metrics see it twice.
    """
    if count == 1:
        return values, batch
    start, stop = batch * number // count, batch * (number + 1) // count
    end = max(stop, start + 1) if isinstance(batch, int) else tf.maximum(stop, start + 1)
    part = tf.nest.map_structure(lambda value: None if value is None else value[start:end], values)
    return part, stop - start


def _share(value: Any, loss: tf.Tensor) -> tf.Tensor:
    """No constant: of one TensorFlow makes whole gradients, as of a regularization, which stay in memory."""
    return tf.stop_gradient(native.ops().comptrain_fence([tf.cast(value, loss.dtype), loss])[0])


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


def check_losses(model: keras.Model) -> None:
    """Raises ValueError where a loss is no mean over samples."""
    others = _other_reductions(model)
    if others:
        raise ValueError(
            "The losses of a model in microbatches must be means over samples (reduction='sum_over_batch_size'). "
            f"Received: {others}."
        )


def _other_reductions(model: keras.Model) -> str:
    return ", ".join(sorted(map(str, _keras.reductions_of(model) - set(_MEANS))))
