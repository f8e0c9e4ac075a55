"""The train step of a placed model: microbatches in the order 1F1B, and each part of it on its stage's device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.graph.devices import follow_variables, keep_on_stages
from tf_comptrain.placement.accumulation import Schedule, check_losses, samples_of, train_by_parts
from tf_comptrain.placement.placed import Microbatch, PlacedCall
from tf_comptrain.placement.values import check_samples


def train_step(model: keras.Model, data: Any, *, call: PlacedCall, count: int) -> Any:
    """As `keras.Model.train_step`, of a model whose call is `call`, in that many microbatches."""
    _check(model, count)
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    check_samples(samples_of(x), count, "microbatches")
    if model.optimizer is not None:
        _keras.move_slots(model)
    order = _OneForwardOneBackward(model, call, count)
    try:
        return train_by_parts(model, data, count, order)
    finally:
        call.microbatch = None


class _OneForwardOneBackward(Schedule):
    """1F1B: a stage waits for its backward pass of an earlier microbatch, which frees what that holds.

    Args:
      model: The model.
      call: Its call.
      count: How many microbatches a step has.

    Attributes:
      last: The device of the losses.
    """

    def __init__(self, model: keras.Model, call: PlacedCall, count: int):
        super().__init__(model)
        self.last = call.stages[-1].devices[0]
        self._call = call
        self._count = count
        self._done: list[dict[int, tf.Operation]] = []  # by microbatch, of each stage

    def begin(self, number: int, part: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
        count = len(self._call.stages)
        waits = {}
        for stage in range(count):
            before = number - (count - stage)
            waits[stage] = [self._done[before][stage]] if before >= 0 else []
        self._call.microbatch = Microbatch(waits)
        return part, sums

    def check(self, outputs: Any) -> None:
        if self._count > 1:
            super().check(outputs)

    def stage_inputs(self) -> list[tf.Tensor]:
        assert self._call.microbatch is not None
        return [tensor for inputs in self._call.microbatch.inputs.values() for tensor in inputs]

    def end(self, weights: Sequence[Any], sums: Sequence[Any], gradients: Sequence[Any]) -> None:
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
        variables = [part for v in _keras.weights_and_slots(self.model) for part in _keras.parts_of(v)]
        follow_variables(graph, start, variables)


def _check(model: keras.Model, count: int) -> None:
    if _keras.under_xla():
        raise ValueError(
            f"Model {model.name!r} is placed on stages and must be compiled with jit_compile=False: XLA runs on one "
            "device. Received: jit_compile=True."
        )
    if count > 1:
        check_losses(model)
