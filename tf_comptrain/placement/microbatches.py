"""The train step of a placed model: microbatches in the order 1F1B, and each part of it on its stage's device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras, native
from tf_comptrain.graph.devices import follow_variables, keep_on_stages
from tf_comptrain.placement.placed import Microbatch, PlacedCall
from tf_comptrain.placement.values import check_samples

_MEANS = ("sum_over_batch_size", "mean", None)


def train_step(model: keras.Model, data: Any, *, call: PlacedCall, count: int) -> Any:
    """As `keras.Model.train_step`, of a model whose call is `call`, in that many microbatches."""
    _check(model, count)
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    check_samples(_batch_of(x), count, "microbatches")
    if model.optimizer is not None:
        _keras.move_slots(model)
    order = _OneForwardOneBackward(model, call, count)
    try:
        return _train(model, data, count, order)
    finally:
        call.microbatch = None


def _train(model: keras.Model, data: Any, count: int, schedule: _OneForwardOneBackward) -> Any:
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
    batch = _batch_of(x)
    weights = model.trainable_variables
    sums: list[Any] = [None] * len(weights)
    logs: Any = {}
    for number in range(count):
        own_x, own_y, own_weight = _part_of((x, y, weight), batch, number, count)
        schedule.begin(number)
        with tf.GradientTape() as tape:
            found = _keras.call_in_training(model, own_x)
            schedule.check(found)
            with tf.device(schedule.last):
                loss = _keras.loss_in_training(model, own_x, own_y, found, own_weight)
                samples = _batch_of(own_x)
                _keras.note_loss(model, loss, samples)
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


class _OneForwardOneBackward:
    """1F1B: a stage waits for its backward pass of an earlier microbatch, which frees what that holds.

    Args:
      model: The model.
      call: Its call.
      count: How many microbatches a step has.

    Attributes:
      last: The device of the losses.
    """

    def __init__(self, model: keras.Model, call: PlacedCall, count: int):
        self.last = call.stages[-1].devices[0]
        self._model = model
        self._call = call
        self._count = count
        self._done: list[dict[int, tf.Operation]] = []  # by microbatch, of each stage

    def begin(self, number: int) -> None:
        """Before the forward pass of a microbatch."""
        count = len(self._call.stages)
        waits = {}
        for stage in range(count):
            before = number - (count - stage)
            waits[stage] = [self._done[before][stage]] if before >= 0 else []
        self._call.microbatch = Microbatch(waits)

    def check(self, outputs: Any) -> None:
        """That the loss is a mean over samples."""
        if self._count > 1 and any(_keras.mask_of(tensor) is not None for tensor in tf.nest.flatten(outputs)):
            raise ValueError(
                f"The outputs of a model in microbatches must have no mask of Keras': the loss of {self._model.name!r} "
                "is a mean over those of its values that are not masked, and microbatches have different numbers of "
                "them. Use sample_weight, or microbatches=1."
            )

    def stage_inputs(self) -> list[tf.Tensor]:
        """What tensors of that forward pass gradients are wanted of, beside the weights."""
        assert self._call.microbatch is not None
        return [tensor for inputs in self._call.microbatch.inputs.values() for tensor in inputs]

    def end(self, weights: Sequence[Any], sums: Sequence[Any], gradients: Sequence[Any]) -> None:
        """After a backward pass: the weights, the sums of their gradients, the gradients of `stage_inputs()`."""
        assert self._call.microbatch is not None
        found: dict[int, list[Any]] = {number: [] for number in range(len(self._call.stages))}
        own = iter(gradients)
        for number, inputs in self._call.microbatch.inputs.items():
            found[number] += [next(own) for _ in inputs]
        for weight, gradient in zip(weights, sums):
            found[self._call.stage_of_weight.get(id(weight), 0)].append(gradient)
        done = {}
        for number, made in found.items():
            tensors = [getattr(one, "values", one) for one in made if one is not None]
            with tf.device(self._call.stages[number].devices[0]), tf.control_dependencies(tensors):
                done[number] = tf.no_op()
        self._done.append(done)

    @contextlib.contextmanager
    def gradients(self) -> Iterator[None]:
        """Around a backward pass, which goes where the forward pass was."""

        def place(backward: _keras.BackwardPass) -> dict[str, tf.Tensor]:
            keep_on_stages(backward, {})
            return {}

        with _keras.on_gradients(place):  # the last of the hooks: compression has rewired the pass by then
            yield

    @contextlib.contextmanager
    def updates(self) -> Iterator[None]:
        """Around the optimizer's work, which goes where the weights are."""
        graph = tf.compat.v1.get_default_graph()
        start = len(graph.get_operations())
        yield
        variables = [part for v in _keras.weights_and_slots(self._model) for part in _keras.parts_of(v)]
        follow_variables(graph, start, variables)


def _batch_of(values: Any) -> Any:
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


def _check(model: keras.Model, count: int) -> None:
    if _keras.under_xla():
        raise ValueError(
            f"Model {model.name!r} is placed on stages and must be compiled with jit_compile=False: XLA runs on one "
            "device. Received: jit_compile=True."
        )
    others = _keras.reductions_of(model) - set(_MEANS)
    if count > 1 and others:
        raise ValueError(
            "The losses of a model in microbatches must be means over samples (reduction='sum_over_batch_size'). "
            f"Received: {', '.join(sorted(map(str, others)))}."
        )
