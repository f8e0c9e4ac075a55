"""Rows that a forward pass knows the squares of."""

import numpy as np
import pytest
import tensorflow as tf

from tf_comptrain.graph.held.row_squares import shortened, squares_of_rows


def traced(between):
    """A tensor of a graph, and the mean of squares of what is made of it, over the last dimension."""
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, (4, 8, 8)) * 2.0
        tf.reduce_mean(tf.square(between(x)), -1, keepdims=True)
        return squares_of_rows(x, lambda op: False)


def is_known(between):
    return traced(between) is not None


def test_squares_of_a_tensor_and_of_its_views():
    assert is_known(tf.identity)
    assert is_known(lambda x: tf.reshape(x, (4, 8, 2, 4)))


def test_values_in_another_order_have_other_rows():
    assert not is_known(lambda x: tf.transpose(x, (0, 2, 1)))


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("reduce", [tf.reduce_mean, tf.reduce_sum])
@pytest.mark.parametrize("shape", [(2, 6), (2, 2, 3)])
def test_only_rows_that_are_much_longer_are_shortened(shape, reduce, keepdims):
    rows = np.ones((2, 6), np.float32)
    rows[1, :3] = 0

    @tf.function
    def step(x, restored):
        held = x * 1.0
        total = reduce(tf.square(tf.reshape(held, shape)), -1, keepdims=keepdims)
        return shortened(restored, squares_of_rows(held, lambda op: False)), total

    restored = np.stack([1.5 * rows[0], rows[1] + 3.0])
    found = step(rows, restored)[0].numpy().reshape(-1, shape[-1])
    true = (rows**2).reshape(-1, shape[-1]).sum(-1)
    as_it_is = restored.reshape(-1, shape[-1])
    longer = (as_it_is**2).sum(-1)
    is_longer = longer > 4 * true
    assert is_longer.any() and not is_longer.all()
    np.testing.assert_array_equal(found[~is_longer], as_it_is[~is_longer])
    left = (4 * true / longer)[is_longer, None]
    np.testing.assert_allclose(found[is_longer], left * as_it_is[is_longer], rtol=1e-5)
