"""Rows that a forward pass knows the squares of."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tests.needs_xla import needs_xla
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
        return shortened(restored, squares_of_rows(held, lambda op: False), False), total

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


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=needs_xla)])
@pytest.mark.parametrize("is_short", [False, True])
def test_groups_of_many_values_are_measured_by_some(is_short, jit_compile):
    """Rows of a group normalization; the bound of its gradient is that of its shortest group."""
    x = np.random.default_rng(0).normal(size=(4, 64, 64, 8)).astype("float32")
    if is_short:
        x[1] *= 1e-3

    def gradients(**how):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Conv2D(8, 1, use_bias=False), keras.layers.GroupNormalization(2)]
        model = keras.Sequential(
            [keras.Input((64, 64, 8)), *layers, keras.layers.Conv2D(4, 1, activation="gelu")]
        )
        if how:
            ct.compress_model(model, **how)

        @tf.function(jit_compile=jit_compile)
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - 1.0))
            return tape.gradient(loss, model.trainable_variables)

        graph = step.get_concrete_function(x).graph
        is_measured = any(op.type in ("If", "StatelessIf") for op in graph.get_operations())
        return np.concatenate([np.ravel(g) for g in step(x)]), is_measured

    plain, _ = gradients()
    ours, is_measured = gradients(error_bound=ct.ErrorBound(0.1))
    assert is_measured != jit_compile
    assert np.linalg.norm(ours - plain) <= 0.1 * np.linalg.norm(plain)


def test_a_centre_of_each_place_is_subtracted_at_each_place():
    """Nothing is left out along an axis that the centre has."""

    @tf.function
    def step(x, restored):
        held = x * 1.0
        centre = tf.reduce_mean(held, (0, 2, 3), keepdims=True)
        tf.reduce_mean(tf.math.squared_difference(held, centre), (1, 2), keepdims=True)
        return shortened(restored, squares_of_rows(held, lambda op: False), False)

    x = np.random.default_rng(0).normal(size=(2, 64, 32, 4)).astype("float32")
    np.testing.assert_array_equal(step(x, x), x)
