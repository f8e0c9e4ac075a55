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


def test_what_is_wished_for_one_of_them_is_done():
    """In whichever call it is said."""
    inputs = keras.Input((WIDTH, 16))
    x = keras.layers.Dense(16)(inputs)
    first, second = (keras.layers.Activation("tanh", name=name)(x) for name in ("one", "two"))
    outputs = [keras.layers.Dense(4, name=name)(x) for x, name in ((first, "of_one"), (second, "of_two"))]
    model = keras.Model(inputs, keras.layers.Add()(outputs))
    model.compile("sgd", "mse", jit_compile=False)
    report = ct.compress_model(model, storage={"of_two": "keep"})
    model.train_on_batch(np.ones((ROWS, WIDTH, 16)), np.ones((ROWS, WIDTH, 4)))
    assert "keep" in {row.storage for row in report.rows if row.operation == "Tanh"}


@pytest.mark.parametrize("jit_compile", ENGINES)
def test_two_poolings_of_one_tensor(jit_compile):
    """Raw ones, whose gradients are two of one pooling then."""

    @tf.function(jit_compile=jit_compile)
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=True)
            pooled = [tf.nn.max_pool2d(y, 2, 2, "VALID") for _ in range(2)]
            loss = tf.reduce_sum(pooled[0] * pooled[1])
        return tape.gradient(loss, model.trainable_variables)

    model = keras.Sequential([keras.Input((32, 32, 8)), keras.layers.Conv2D(16, 3, padding="same")])
    x = tf.random.stateless_normal((16, 32, 32, 8), (0, 1))
    plain = step(x)
    step = tf.function(step.python_function, jit_compile=jit_compile)
    ct.compress_model(model)
    difference = [a - b for a, b in zip(step(x), plain)]
    assert tf.linalg.global_norm(difference) < 0.05 * tf.linalg.global_norm(plain)


def test_a_read_that_waits_is_another_one():
    """For what writes to the weight where nothing of the graph shows it."""
    weight = tf.Variable(tf.ones((16, 64)))
    dense = keras.layers.Dense(16)
    model = keras.Sequential([keras.Input((32,)), dense])
    ct.compress_model(model)

    def write():
        weight.assign_add(tf.ones((16, 64)))
        return 0.0

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            y = model(x, training=True)
            first = tf.tanh(0.1 * tf.matmul(y, weight))
            with tf.control_dependencies([first]):
                written = tf.py_function(write, [], tf.float32)
            with tf.control_dependencies([written]):
                second = tf.tanh(0.1 * tf.matmul(y, weight.read_value()))
            loss = tf.reduce_sum(second - first)
        return loss, tape.gradient(loss, model.trainable_variables)

    x = tf.random.stateless_normal((1024, 32), (0, 1))
    loss, _ = step(x)
    before = tf.matmul(model(x), tf.ones((16, 64)))
    expected = tf.reduce_sum(tf.tanh(0.2 * before) - tf.tanh(0.1 * before))
    np.testing.assert_allclose(loss, expected, rtol=1e-3)


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
