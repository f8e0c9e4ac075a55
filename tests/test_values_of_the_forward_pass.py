"""The backward pass differentiates at the weights, statistics and seeds of the forward pass."""

import numpy as np
import pytest
import tensorflow as tf
from models import layers
from tensorflow import keras

import tf_comptrain as ct

EXACT = [{"storage": "keep"}, {"codec": "zvc"}]


def relative_difference(found, expected):
    a, b = (np.concatenate([np.ravel(value) for value in values]) for values in (found, expected))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def reset(model, values):
    for variable, value in zip(model.variables, values):
        variable.assign(value)


def generator_and_discriminator(wrap):
    keras.utils.set_random_seed(0)
    shape = (12, 12, 3)
    generator = keras.Sequential(
        [
            keras.Input((16,)),
            layers.Dense(12 * 12 * 3, activation="tanh"),
            layers.Reshape(shape),
            layers.Conv2D(3, 3, padding="same"),
        ]
    )
    hidden = [wrap(layers.Conv2D(16, 3)), layers.LeakyReLU(), wrap(layers.Conv2D(16, 3)), layers.LeakyReLU()]
    return generator, keras.Sequential([keras.Input(shape), *hidden, layers.Flatten(), layers.Dense(1)])


def of_an_updated_discriminator(generator, discriminator, z, real):
    """One forward pass for both, and the discriminator's update before the generator's gradient."""
    with tf.GradientTape(persistent=True) as tape:
        fake = discriminator(generator(z, training=True), training=True)
        loss = tf.reduce_mean(fake) - tf.reduce_mean(discriminator(real, training=True))
    weights = [v.value for v in discriminator.trainable_variables]
    for weight, gradient in zip(weights, tape.gradient(loss, weights)):
        weight.assign_sub(0.5 * gradient)
    return tape.gradient(fake, [v.value for v in generator.trainable_variables])


def of_two_calls(generator, discriminator, z, real):
    """Each call of SpectralNormalization assigns the kernel."""
    with tf.GradientTape() as tape:
        fake = discriminator(generator(z, training=True), training=True)
        loss = tf.reduce_mean(fake**2) - tf.reduce_mean(discriminator(real, training=True))
    return tape.gradient(loss, [v.value for v in discriminator.trainable_variables])


@pytest.mark.parametrize("options", EXACT, ids=["keep", "zvc"])
@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("step", [of_an_updated_discriminator, of_two_calls])
def test_weights_assigned_between_forward_and_backward_pass(step, graph, options):
    wrap = layers.SpectralNormalization if step is of_two_calls else lambda layer: layer
    models = generator_and_discriminator(wrap)
    weights = [model.get_weights() for model in models]
    rng = np.random.default_rng(0)
    z, real = (tf.constant(rng.normal(size=(4, *s)), tf.float32) for s in ((16,), (12, 12, 3)))

    def run():
        for model, values in zip(models, weights):
            reset(model, values)
        made = step if not graph else tf.function(step)
        return made(*models, z, real)

    plain = run()
    for model in models:
        ct.compress_model(model, **options)
    assert relative_difference(run(), plain) < 1e-6


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_stateless_call_differentiates_by_the_caller_s_weights(graph):
    keras.utils.set_random_seed(0)
    hidden = [
        layers.Conv2D(16, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.GroupNormalization(4),
    ]
    model = keras.Sequential([keras.Input((10, 10, 8)), *hidden, layers.Flatten(), layers.Dense(1)])
    x = tf.random.stateless_normal((4, 10, 10, 8), (1, 2))
    trained = [v.value * 1.5 for v in model.trainable_variables]
    others = [tf.convert_to_tensor(v.value) for v in model.non_trainable_variables]

    def compute(x, trained):
        with tf.GradientTape() as tape:
            tape.watch([x, *trained])
            y, states = model.stateless_call(trained, others, x, training=True)
            loss = tf.reduce_mean(y**2)
        return [*tape.gradient(loss, [x, *trained]), *states]

    def run():
        return (tf.function(compute) if graph else compute)(x, trained)

    plain = run()
    ct.compress_model(model, codec="zvc")
    found = run()
    assert all(value is not None for value in found)
    assert relative_difference(found, plain) < 1e-5


class SpectralConv(layers.Conv2D):
    """Overrides Keras' documented hook, which updates variables here."""

    def build(self, shape):
        super().build(shape)
        self.u = self.add_weight(shape=(1, self.filters), initializer="ones", trainable=False)
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def convolution_op(self, inputs, kernel):
        matrix = tf.reshape(kernel, (-1, self.filters))
        v = tf.stop_gradient(tf.math.l2_normalize(self.u.value @ tf.transpose(matrix)))
        u = tf.stop_gradient(tf.math.l2_normalize(v @ matrix))
        self.u.assign(u)
        self.count.assign(self.count + 1.0)
        return super().convolution_op(inputs, kernel / (v @ matrix @ tf.transpose(u))[0, 0])


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_a_hook_that_updates_variables_updates_them_once(graph):
    keras.utils.set_random_seed(0)
    conv = SpectralConv(8, 3, padding="same")
    model = keras.Sequential([keras.Input((8, 8, 8)), conv, layers.ReLU(), layers.Flatten(), layers.Dense(1)])
    x, weights = tf.random.stateless_normal((4, 8, 8, 8), (1, 2)), model.get_weights()

    def compute():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    def run():
        reset(model, weights)
        grads = (tf.function(compute) if graph else compute)()
        return [*grads, conv.u.numpy(), conv.count.numpy()]

    plain = run()
    ct.compress_model(model, codec="zvc")
    found = run()
    assert found[-1] == 1
    assert relative_difference(found, plain) < 1e-6


class WithStateOfItsOwn(layers.Conv2D):
    """Its state is TensorFlow's, of which Keras does not know."""

    def build(self, shape):
        super().build(shape)
        self.count = tf.Variable(0.0, trainable=False)
        self.noise = {"generator": tf.random.Generator.from_seed(1)}

    def convolution_op(self, inputs, kernel):
        self.count.assign_add(1.0)
        noise = self.noise["generator"].normal(tf.shape(kernel))
        return super().convolution_op(inputs, kernel * (self.count + noise))


@pytest.mark.parametrize(
    "wrap", [lambda layer: layer, ct.Compress, ct.Recompute], ids=["alone", "Compress", "Recompute"]
)
@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_a_layer_with_state_that_keras_does_not_know_runs_once(graph, wrap):
    conv = WithStateOfItsOwn(8, 3, padding="same")
    model = keras.Sequential([keras.Input((8, 8, 8)), wrap(conv), layers.Flatten(), layers.Dense(1)])
    x = tf.random.stateless_normal((4, 8, 8, 8), (1, 2))

    def compute():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    def run():
        conv.count.assign(0.0)
        conv.noise["generator"].reset_from_seed(1)
        grads = (tf.function(compute) if graph else compute)()
        return [*grads, conv.count.numpy()]

    with ct.training_scope(False):
        plain = run()
    ct.compress_model(model, codec="zvc")
    found = run()
    assert found[-1] == plain[-1] == 1
    assert relative_difference(found, plain) < 1e-6
