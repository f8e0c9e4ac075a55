"""What a gradient operation asks of signs is answered by its own limits, whatever the stream's mask says."""

import numpy as np
import pytest
import tensorflow as tf
from steps import Weights, compressed_gradients, plain_gradients

import tf_comptrain as ct

RNG = np.random.default_rng(0)
X = tf.constant(RNG.normal(size=(16, 64, 8)), tf.float32)


@tf.custom_gradient
def relu_of_any(x):
    """Its gradient reads a tensor with negative values: x != 0 is not x > 0."""
    return tf.maximum(x, 0.0), lambda dy: tf.raw_ops.ReluGrad(gradients=dy, features=x)


@tf.custom_gradient
def relu6_of_any(x):
    return tf.clip_by_value(x, 0.0, 6.0), lambda dy: tf.raw_ops.Relu6Grad(gradients=dy, features=x)


READERS = {
    "relu_and_leaky": lambda y: relu_of_any(y) + tf.nn.leaky_relu(y, 0.3),
    "leaky_and_relu": lambda y: tf.nn.leaky_relu(y, 0.3) + relu_of_any(y),
    "relu_of_negative_values": relu_of_any,
    "two_slopes": lambda y: tf.nn.leaky_relu(y, 0.3) + tf.nn.leaky_relu(y, 0.01),
    "relu_and_relu6": lambda y: relu_of_any(9.0 * y) + relu6_of_any(9.0 * y),
    "leaky_of_a_relu": lambda y: tf.nn.leaky_relu(tf.nn.relu(y), 0.3) + tf.nn.relu(y),
}


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("name", READERS)
def test_readers_of_one_tensor(name, jit):
    def loss(x, first, second):
        y = tf.matmul(x, first) - 1.0
        y = y if name != "leaky_of_a_relu" else tf.nn.relu(y)  # itself read by the product below
        made = tf.matmul(READERS[name](y), second) + tf.matmul(y, second)
        return tf.reduce_mean(tf.sin(made))

    shapes, how = ([8, 16], [16, 8]), {"jit_compile": jit}
    found = compressed_gradients(loss, X, Weights(*shapes), how, codec="plane" if jit else "zvc")
    for ours, plain in zip(found.gradients, plain_gradients(loss, X, Weights(*shapes))):
        assert np.linalg.norm(ours - plain) <= (0.2 if jit else 1e-6) * np.linalg.norm(plain)
    assert any(op.type == "Comptrain>Bitmask" for op in found.graph.get_operations())


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_an_index_that_is_made_of_an_activation(jit):
    """As where a sampler of images interpolates: of 30.0 and of what it may come back as, other rows are gathered."""

    def loss(x, first, table, second):
        place = tf.clip_by_value(31.0 + 4.0 * tf.matmul(x, first), 0.0, 62.0)
        low, table = tf.floor(place), tf.tanh(table)
        index, share = tf.cast(low, tf.int32), (place - low)[..., tf.newaxis]
        made = (1 - share) * tf.gather(table, index) + share * tf.gather(table, index + 1)
        made = tf.where(tf.cast(low - 31.0, tf.bool)[..., tf.newaxis], made, 2.0 * made)
        return tf.reduce_mean(tf.sin(tf.matmul(made, second)))

    shapes, how = ([8, 16], [64, 4], [4, 8]), {"jit_compile": jit}
    found = compressed_gradients(loss, X, Weights(*shapes), how)
    for ours, plain in zip(found.gradients, plain_gradients(loss, X, Weights(*shapes))):
        assert np.linalg.norm(ours - plain) <= 0.2 * np.linalg.norm(plain)


def test_the_gradient_of_an_activation_itself():
    """As a penalty on features has it: the slope of what reads a ReLU's output is that reader's."""

    def loss(x, first, second):
        y = tf.nn.relu(tf.matmul(x, first))
        made = tf.matmul(tf.nn.leaky_relu(y, 0.3), second) + tf.matmul(y, second)
        (of_y,) = tf.gradients(tf.reduce_mean(tf.sin(made)), [y])
        return tf.reduce_sum(tf.square(of_y)) + tf.reduce_mean(tf.sin(made))

    shapes = [8, 16], [16, 8]
    found = compressed_gradients(loss, X, Weights(*shapes), codec="zvc")
    for ours, plain in zip(found.gradients, plain_gradients(loss, X, Weights(*shapes), traced=True)):
        assert np.linalg.norm(ours - plain) <= 1e-6 * np.linalg.norm(plain)


def test_bits_are_made_once_for_readers_with_the_same_limits():
    def loss(x, first, second):
        y = tf.matmul(x, first)
        return tf.reduce_mean(tf.sin(tf.matmul(READERS["two_slopes"](y), second) + tf.matmul(y, second)))

    found = compressed_gradients(loss, X, Weights([8, 16], [16, 8]))
    assert [op.type for op in found.graph.get_operations()].count("Comptrain>Bitmask") == 1


@tf.custom_gradient
def straight_through_sign(x):
    return tf.sign(x), lambda dy: dy * tf.cast(tf.abs(x) <= 1.0, dy.dtype)


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_a_straight_through_sign_of_a_normalization(jit):
    """Its `IdentityN` has the normalization itself among its inputs, and hands on the sign alone."""

    def loss(x, kernel, gamma, second):
        y = tf.reshape(tf.matmul(x, kernel), (1, 16, 64, 8))
        y = tf.compat.v1.nn.fused_batch_norm(y, gamma, tf.zeros(8))[0]
        return tf.reduce_mean(tf.sin(tf.nn.conv2d(straight_through_sign(y), second, 1, "SAME")))

    shapes, how = ([8, 8], [8], [3, 3, 8, 4]), {"jit_compile": jit}
    found = compressed_gradients(loss, X, Weights(*shapes), how, error_bound=1e-3)
    for ours, plain in zip(found.gradients, plain_gradients(loss, X, Weights(*shapes))):
        assert np.linalg.norm(ours - plain) <= 0.1 * np.linalg.norm(plain)


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_a_mask_of_indices_is_made_once_on_the_executor(jit):
    model = Weights([8, 16], [16, 8])
    ct.compress_model(model)

    @tf.function(autograph=False, jit_compile=jit)
    def step(x, words):
        first, second = (part.value for part in model.parts)
        with tf.GradientTape() as tape:
            masked = tf.where(tf.not_equal(words, 0)[..., tf.newaxis], tf.matmul(x, first), -1.0)
            value = tf.reduce_mean(tf.sin(tf.matmul(tf.tanh(masked), second)))
        return tape.gradient(value, [first, second])

    words = tf.reshape(tf.range(16 * 64), [16, 64]) % 5
    graph = step.get_concrete_function(X, words).graph
    assert [op.type for op in graph.get_operations()].count("NotEqual") == (2 if jit else 1)
