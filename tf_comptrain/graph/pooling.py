"""Max pooling by the position of each maximum in its window, whatever made it: the gradient needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_comptrain import native
from tf_comptrain.graph.operations import WINDOW, about
from tf_comptrain.graph.tensors import base_of
from tf_comptrain.storage import may_hold_positions

_LAYOUTS = (b"NHWC", b"NDHWC")


def bits_of(window: Sequence[int]) -> float:
    """Bits of a position in a window."""
    return next(bits for bits in (1, 2, 4, 8, 16) if math.prod(window) <= 1 << bits)


def pooling_of(gradient: tf.Operation, xla: bool) -> tf.Operation | None:
    """The max pooling that an operation is the gradient of; None where that is not ours to replace."""
    row = about(gradient.type)
    if WINDOW not in row.reads.values():
        return None
    pooling = base_of(next(t for t in gradient.inputs[1:] if t is not incoming(gradient))).op
    if pooling.type != row.gradient_of or base_of(pooling.inputs[0]) is not base_of(gradient.inputs[0]):
        return None
    ksize, strides = pooling.get_attr("ksize"), pooling.get_attr("strides")
    fits = (
        (pooling.type == "MaxPoolWithArgmax" or pooling.get_attr("data_format") in _LAYOUTS)
        and pooling.get_attr("padding") in (b"SAME", b"VALID")
        and {ksize[0], ksize[-1], strides[0], strides[-1]} == {1}
        and may_hold_positions(ksize, pooling.inputs[0], xla)
    )
    return pooling if fits else None


def incoming(gradient: tf.Operation) -> tf.Tensor:
    """What the gradient operation of a max pooling gets."""
    return gradient.inputs[1 if gradient.type == "MaxPoolGradWithArgmax" else 2]


def with_positions(pooling: tf.Operation) -> tuple[tf.Tensor, tf.Tensor]:
    """The maxima and their positions, in place of a pooling, which nothing has to read any more; made once."""
    name = f"{pooling.name}/positions"
    made = [op for op in pooling.inputs[0].consumers() if op.name == name]
    if made:
        return made[0].outputs[0], made[0].outputs[1]
    return native.ops().comptrain_max_pool(pooling.inputs[0], **_window(pooling), name=f"{name}/")


def gradient_of_positions(pooling: tf.Operation, positions: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
    """The gradient of the pooling's input."""
    shape = tf.shape(pooling.inputs[0])
    return native.ops().comptrain_max_pool_grad(positions, dy, shape, **_window(pooling))


def _window(pooling: tf.Operation) -> dict[str, Any]:
    return {
        "ksize": pooling.get_attr("ksize")[1:-1],
        "strides": pooling.get_attr("strides")[1:-1],
        "padding": pooling.get_attr("padding").decode(),
    }
