"""Compressed layers are called, and fail, as Keras' own; what is no dense training call runs plain."""

import contextlib
import logging

import numpy as np
import pytest
import tensorflow as tf
from models import layers
from tensorflow import keras

import tf_comptrain as ct

X = tf.random.stateless_normal((4, 12, 8), (1, 2))
MASK = tf.random.stateless_uniform((4, 12, 8), (1, 3)) > 0.3


class Calling(keras.Model):
    """Calls one layer as a function says."""

    def __init__(self, layer, how):
        super().__init__()
        self.layer, self.how = layer, how
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x, training=None):
        return self.how(self.layer, x * self.scale)


CALLS = {
    "softmax, mask by position": (layers.Softmax, lambda layer, x: layer(x, MASK)),
    "softmax, mask by name": (layers.Softmax, lambda layer, x: layer(inputs=x, mask=MASK)),
    "attention by position": (lambda: layers.MultiHeadAttention(2, 8), lambda layer, x: layer(x, x, X)),
    "attention by name": (lambda: layers.MultiHeadAttention(2, 8), lambda layer, x: layer(value=X, query=x)),
    "dense by name": (lambda: layers.Dense(8), lambda layer, x: layer(inputs=x)),
    "activation by name": (lambda: layers.Activation("gelu"), lambda layer, x: layer(inputs=x)),
    "sum by name": (layers.Add, lambda layer, x: layer(inputs=[x, X])),
    "dropout by name": (lambda: layers.Dropout(0.5, seed=1), lambda layer, x: layer(training=True, inputs=x)),
}


@pytest.mark.parametrize("case", CALLS)
def test_arguments_are_those_of_keras(case):
    make, how = CALLS[case]
    keras.utils.set_random_seed(0)
    model = Calling(make(), how)
    model(X)
    weights = [v.numpy() for v in model.variables]

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(X, training=True) ** 3)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    def run():
        for variable, value in zip(model.variables, weights):
            variable.assign(value)
        return tf.function(step)()

    plain = run()
    ct.compress_model(model, codec="zvc")
    for found, expected in zip(run(), plain):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("error", [ValueError, KeyError, tf.errors.InvalidArgumentError])
def test_an_exception_names_the_layer_and_the_way_out(error):
    class Failing(layers.Conv2D):
        fails = False

        def convolution_op(self, inputs, kernel):
            if not self.fails:
                return super().convolution_op(inputs, kernel)
            arguments = (
                (None, None, "its own words")
                if error is tf.errors.InvalidArgumentError
                else ("its own words",)
            )
            raise error(*arguments)

    model = keras.Sequential([keras.Input((8, 8, 8)), Failing(4, 3, name="failing")])
    ct.compress_model(model)
    Failing.fails = True
    step = tf.function(lambda x: model(x, training=True), autograph=False)
    with pytest.raises(error, match="its own words") as caught:
        step(tf.ones((2, 8, 8, 8)))
    assert "tf_comptrain" in str(caught.value) and "'failing': \"keep\"" in str(caught.value).replace(
        "\\'", "'"
    )


def test_sparse_inputs_run_plain():
    inputs = keras.Input((300,), sparse=True)
    hidden = layers.Dense(64, activation="relu")
    model = keras.Model(inputs, layers.Dense(1)(hidden(inputs)))
    model.compile("sgd", "mse")
    rng = np.random.default_rng(0)
    x = tf.sparse.from_dense((rng.random((8, 300)) > 0.9).astype("float32"))
    weights, losses = model.get_weights(), []
    for compress in (False, True):
        model.set_weights(weights)
        if compress:
            ct.compress_model(model, codec="zvc")
        losses.append([float(model.train_on_batch(x, np.ones((8, 1)))) for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.parametrize("codec", ["plane", "zvc"])
def test_gradients_of_each_sample(codec):
    """As differentially private training takes them."""
    keras.utils.set_random_seed(0)
    hidden = [layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization(), layers.Flatten()]
    model = keras.Sequential([keras.Input((8, 8, 3)), *hidden, layers.Dense(2)])
    x = tf.random.stateless_normal((4, 8, 8, 3), (1, 2))

    def of_one(sample):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(sample[None], training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables[-2].value)

    def run():
        return tf.function(lambda: tf.vectorized_map(of_one, x))()

    plain = run()
    ct.compress_model(model, codec=codec)
    np.testing.assert_allclose(run(), plain, rtol=1e-5, atol=1e-6)


def untold_loop(model, x):
    sources = model.trainable_variables or x
    with ct.training_scope() if sources is x else contextlib.nullcontext():
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(model(x) ** 2)
        gradients = tape.gradient(loss, sources)
    return tf.concat([tf.reshape(found, [-1]) for found in tf.nest.flatten(gradients)], 0)


@pytest.mark.parametrize("frozen", [False, True])  # where frozen, an image is trained
def test_loops_that_pass_no_training_are_held_too(frozen, caplog):
    hidden = [layers.Conv1D(32, 3, activation="tanh"), layers.Conv1D(8, 3)]
    model = keras.Sequential([keras.Input((12, 8)), *hidden])
    model.trainable = not frozen
    plain = tf.function(untold_loop)(model, X)
    ct.compress_model(model, error_bound=0.5)
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert np.abs(tf.function(untold_loop)(model, X) - plain).max() > 1e-3
    assert not caplog.records


@pytest.mark.parametrize("gan_first", [False, True])
def test_a_discriminator_and_the_gan_around_it(gan_first):
    """The composed kind: compiled, then frozen inside the model that trains the generator."""

    def losses(compress):
        keras.utils.set_random_seed(0)
        d = keras.Sequential(
            [
                keras.Input((12, 8)),
                layers.Conv1D(16, 3),
                layers.LeakyReLU(),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        d.compile(keras.optimizers.SGD(0.01), "mse")
        g = keras.Sequential(
            [keras.Input((64,)), layers.Dense(96, activation="tanh"), layers.Reshape((12, 8))]
        )
        if compress and not gan_first:
            ct.compress_model(d, codec="zvc")
        d.trainable = False
        gan = keras.Sequential([g, d])
        gan.compile(keras.optimizers.SGD(0.01), "mse")
        if compress:
            ct.compress_model(gan, codec="zvc")
        d.trainable = True
        if compress and gan_first:
            ct.compress_model(d, codec="zvc")
        z, found = np.random.default_rng(0).normal(size=(4, 64)).astype("float32"), []
        for _ in range(3):
            d.trainable = True
            fake = g.predict(z, verbose=0)
            found.append(
                float(d.train_on_batch(np.concatenate([X, fake]), np.repeat([1.0, 0.0], 4)[:, None]))
            )
            d.trainable = False
            found.append(float(gan.train_on_batch(z, np.ones((4, 1)))))
        if compress:
            for model in (d, gan):
                ct.restore_model(model)
        return found

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-4)
