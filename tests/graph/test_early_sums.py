"""Gradients of what several layers share: summed over the samples one by one, and then added to each other."""

import numpy as np
import pytest
import tensorflow as tf
import tiled_steps

BATCH, WIDTH = 16, 64
SHARED = 3


def loss(x, kernel, shared):
    """A tensor of the batch's size, of a weight and the batch, that all layers add."""
    bias = shared + tf.zeros_like(x)
    for _ in range(SHARED):
        x = tf.tanh(tf.matmul(x, kernel) + bias)
    return tf.reduce_mean(tf.sin(x) * tf.range(1.0 * WIDTH))


def run(jit=False, **how):
    x = np.random.default_rng(0).normal(size=(BATCH, WIDTH, WIDTH)).astype("float32")
    shapes = [[WIDTH, WIDTH], [1, WIDTH, WIDTH]]
    return tiled_steps.run(loss, x, shapes, [None, WIDTH, WIDTH], jit, **how)


def added(function):
    """Shapes of what is added up of an addend for each layer."""
    whole = tiled_steps.made_whole(function)
    return [
        tensor.shape.as_list()
        for tensor in whole
        if tensor.op.type == "AddN" and len(tensor.op.inputs) == SHARED and tensor.shape.rank == 3
    ]


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_sums_come_before_the_addition(jit):
    plain, found, function, _ = run(jit, error_bound=1e-4)
    assert added(function) == [[1, WIDTH, WIDTH]]
    tiled_steps.assert_same(plain, found, 0.05 if jit else 1e-3)


def test_where_bits_are_asked_for_the_order_stays():
    plain, found, function, _ = run(codec="zvc")
    assert added(function) == [[None, WIDTH, WIDTH]]
    tiled_steps.assert_same(plain, found)
