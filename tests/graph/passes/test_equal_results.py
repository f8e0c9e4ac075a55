"""What several calls make alike is made, and held, once."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tests.needs_xla import needs_xla

ROWS, WIDTH = 256, 64
ENGINES = [False, pytest.param(True, marks=needs_xla)]


class Turns(keras.layers.Layer):
    """Multiplies a state with a matrix that one dense layer makes of the same input in each turn."""

    def __init__(self, between=lambda layer: None, factors=(1.0, 1.0, 1.0)):
        super().__init__()
        self.edges, self.state = keras.layers.Dense(WIDTH * 16, activation="tanh"), keras.layers.Dense(16)
        self.between, self.factors = between, factors

    def call(self, x):
        state = self.state(x)
        for factor in self.factors:
            matrix = tf.reshape(self.edges(factor * x), [-1, WIDTH, 16])
            state = tf.linalg.matvec(matrix, tf.linalg.matvec(matrix, state), transpose_a=True)
            self.between(self)
        return state


def trained(layer, jit_compile):
    """(a model that is not compressed, its batch)"""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((WIDTH,)), layer])
    model.compile("sgd", "mse", jit_compile=jit_compile)
    x = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("float32")
    return model, (x, x[:, :16])


def matrices(layer, jit_compile):
    """Rows of the report of such matrices."""
    model, batch = trained(layer, jit_compile)
    report = ct.compress_model(model)
    model.train_on_batch(*batch)
    return [row for row in report.rows if (row.value_bytes or 0) >= 4 * WIDTH * 16]


@pytest.mark.parametrize("jit_compile", ENGINES)
def test_what_several_calls_make_alike_is_held_once(jit_compile):
    assert len(matrices(Turns(), jit_compile)) == 1


def test_other_constants_make_others():
    assert len(matrices(Turns(factors=(1.0, 0.5, 1.0)), False)) == 2


def test_a_weight_that_changed_makes_others():
    def change(layer):
        layer.edges.kernel.assign_add(0.1 * tf.ones_like(layer.edges.kernel))

    assert len(matrices(Turns(between=change), False)) == 3


@pytest.mark.parametrize("jit_compile", ENGINES)
def test_gradients_are_those_of_all_calls(jit_compile):
    def gradients(compress):
        model, (x, y) = trained(Turns(), jit_compile)
        if compress:
            ct.compress_model(model)

        @tf.function(jit_compile=jit_compile)
        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            return tape.gradient(loss, model.trainable_variables)

        return step(x, y)

    ours, plain = gradients(True), gradients(False)
    difference = [a - b for a, b in zip(ours, plain)]
    assert 0 < tf.linalg.global_norm(difference) < 0.05 * tf.linalg.global_norm(plain)
