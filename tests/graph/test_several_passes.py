"""Several backward passes in one graph."""

import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.memory import saved_bytes

BATCH, WIDTH = 64, 64
X = tf.constant(np.random.default_rng(0).normal(size=(BATCH, WIDTH)).astype("float32"))


class Chain(keras.Model):
    """Matrix products with an activation after each, in TensorFlow's operations."""

    def __init__(self, activation=tf.tanh, depth=4):
        super().__init__()
        keras.utils.set_random_seed(0)
        self.activation = activation
        self.kernels = [self.add_weight(shape=(WIDTH, WIDTH), name=f"kernel{k}") for k in range(depth)]
        self.built = True

    def call(self, x):
        self.tapped = []
        for kernel in self.kernels:
            x = self.activation(tf.matmul(x, kernel))
            self.tapped.append(x)
        return x


def plain_and_compressed(step, activation=tf.tanh):
    """Results of a step plain, and with lossless streams; the latter's model and graph."""
    plain = step(Chain(activation))
    model = Chain(activation)
    ct.compress_model(model, codec="zvc")
    traced = tf.function(lambda: step(model)).get_concrete_function()
    return plain, traced(), model, traced.graph


def compress_ops(graph):
    return [op for op in graph.get_operations() if op.type == "Comptrain>Compress"]


def test_a_later_pass_holds_what_stands_before_what_an_earlier_one_holds():
    def step(model):
        with tf.GradientTape(persistent=True) as tape:
            last = tf.reduce_mean(model(X) ** 2 + 1.0)
            first = tf.reduce_mean(model.tapped[1] ** 3)
        kernels = [v.value for v in model.kernels]
        ours = tape.gradient(last, kernels[3:]), tape.gradient(first, kernels[:2])
        return tf.nest.flatten(ours)

    plain, compressed, model, graph = plain_and_compressed(step)
    for a, b in zip(plain, compressed, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)
    held = instrumentation(model).held
    assert len(held.sites) == len(compress_ops(graph)) >= 2
    assert all(site.read_state().stream_bytes > 0 for site in held.sites.values())


def test_two_gradients_of_one_forward_pass_hold_a_tensor_once():
    def step(model):
        with tf.GradientTape(persistent=True) as tape:
            y = model(X)
            losses = tf.reduce_mean(y**2), tf.reduce_mean(tf.sin(y))
        kernels = [v.value for v in model.kernels]
        return [gradient for loss in losses for gradient in tape.gradient(loss, kernels)]

    plain, compressed, model, graph = plain_and_compressed(step)
    for a, b in zip(plain, compressed, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-8)
    held = [op.inputs[0].name for op in compress_ops(graph)]
    assert held and len(held) == len(set(held))


def test_a_gradient_of_a_gradient_through_held_tensors():
    def step(model):
        with tf.GradientTape() as outer:
            outer.watch(X)
            with tf.GradientTape() as inner:
                inner.watch(X)
                y = tf.reduce_sum(model(X))
            slope = inner.gradient(y, X)
            penalty = tf.reduce_mean((tf.norm(slope, axis=1) - 1.0) ** 2)
        return outer.gradient(penalty, [v.value for v in model.kernels])

    plain, compressed, model, _ = plain_and_compressed(step)
    for a, b in zip(plain, compressed, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
    assert any(row.storage == "compress" for row in instrumentation(model).held.crossings)


def test_a_gradient_of_gradients_of_weights_under_xla():
    """What order the products have must not cut the gradients from what the outer tape has recorded."""

    def step(model):
        kernels = [v.value for v in model.kernels]
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_mean(model(X) ** 2)
            slopes = inner.gradient(loss, kernels)
            penalty = tf.add_n([tf.reduce_sum(slope**2) for slope in slopes])
        return outer.gradient(penalty, kernels)

    plain = step(Chain(depth=3))
    model = Chain(depth=3)
    ct.compress_model(model)
    found = tf.function(lambda: step(model), jit_compile=True)()
    for a, b in zip(plain, found, strict=True):
        assert np.linalg.norm(a - b) <= 0.1 * np.linalg.norm(a)
    assert any(row.storage == "compress" for row in instrumentation(model).held.crossings)


def test_saved_bytes_do_not_count_what_is_restored_for_a_mask_gradient():
    def saved(compress):
        model = Chain(tf.nn.leaky_relu)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        if compress:
            ct.compress_model(model)
        return saved_bytes(model, X, X)

    # Held are three activations of 16 KiB, four masks and what the loss reads, instead of eight activations.
    assert saved(True) < 0.5 * saved(False)
