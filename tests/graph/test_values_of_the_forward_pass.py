"""The backward pass differentiates at the weights, statistics and seeds of the forward pass."""

import numpy as np
import pytest
import tensorflow as tf
from models import layers
from tensorflow import keras

import tf_comptrain as ct

EXACT = {"keep": {"storage": "keep"}, "zvc": {"codec": "zvc"}}
# In eager mode wrappers hold tensors; compress_model does not.
either_way = pytest.mark.parametrize(("way", "graph"), [("zvc", True), ("Compress", False)])


def as_it_is(layer):
    return layer


def wrapper(way):
    return (lambda layer: ct.Compress(layer, codec="zvc")) if way == "Compress" else as_it_is


def compress(way, *models):
    for model in models if way in EXACT else ():
        ct.compress_model(model, **EXACT[way])


def relative_difference(found, expected):
    a, b = (np.concatenate([np.ravel(value) for value in values]) for values in (found, expected))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


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


@pytest.mark.parametrize(
    ("step", "way", "graph"),
    [
        (of_an_updated_discriminator, "keep", True),
        (of_an_updated_discriminator, "zvc", True),
        (of_an_updated_discriminator, "Compress", True),
        (of_an_updated_discriminator, "Compress", False),
        (of_two_calls, "keep", True),
        (of_two_calls, "zvc", True),
    ],
)
def test_weights_assigned_between_forward_and_backward_pass(step, way, graph):
    normalized = layers.SpectralNormalization if step is of_two_calls else as_it_is
    wrap = wrapper(way)
    models = generator_and_discriminator(lambda layer: wrap(normalized(layer)))
    compress(way, *models)
    rng = np.random.default_rng(0)
    z, real = (tf.constant(rng.normal(size=(4, *s)), tf.float32) for s in ((16,), (12, 12, 3)))

    plain = step(*generator_and_discriminator(normalized), z, real)
    ours = (tf.function(step) if graph else step)(*models, z, real)
    assert relative_difference(ours, plain) < 1e-6


def normalizing_model(wrap):
    keras.utils.set_random_seed(0)
    hidden = [
        layers.Conv2D(16, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.GroupNormalization(4),
    ]
    return keras.Sequential([keras.Input((10, 10, 8)), *map(wrap, hidden), layers.Flatten(), layers.Dense(1)])


@either_way
def test_stateless_call_differentiates_by_the_caller_s_weights(way, graph):
    model = normalizing_model(wrapper(way))
    x = tf.random.stateless_normal((4, 10, 10, 8), (1, 2))
    trained = [v.value * 1.5 for v in model.trainable_variables]
    others = [tf.convert_to_tensor(v.value) for v in model.non_trainable_variables]

    def compute(model, x, trained):
        with tf.GradientTape() as tape:
            tape.watch([x, *trained])
            y, states = model.stateless_call(trained, others, x, training=True)
            loss = tf.reduce_mean(y**2)
        return [*tape.gradient(loss, [x, *trained]), *states]

    plain = compute(normalizing_model(as_it_is), x, trained)
    compress(way, model)
    found = (tf.function(compute) if graph else compute)(model, x, trained)
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


@either_way
def test_a_hook_that_updates_variables_updates_them_once(way, graph):
    x = tf.random.stateless_normal((4, 8, 8, 8), (1, 2))

    def run(way, graph):
        keras.utils.set_random_seed(0)
        conv = SpectralConv(8, 3, padding="same")
        hidden = [wrapper(way)(conv), layers.ReLU(), layers.Flatten()]
        model = keras.Sequential([keras.Input((8, 8, 8)), *hidden, layers.Dense(1)])
        compress(way, model)

        def compute():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        grads = (tf.function(compute) if graph else compute)()
        return [*grads, conv.u.numpy(), conv.count.numpy()]

    plain, found = run("plain", False), run(way, graph)
    assert found[-1] == 1
    assert relative_difference(found, plain) < 1e-6


class Centred(layers.Layer):
    """Reads after it has assigned what it moves: the gradient is the variable's, and not that of what was assigned."""

    def build(self, shape):
        self.mean = self.add_weight(shape=shape[-1:], initializer="zeros", trainable=False)
        self.scale = self.add_weight(shape=shape[-1:], initializer="ones")

    def call(self, x):
        y = x * self.scale
        self.mean.assign(0.5 * self.mean + 0.5 * tf.reduce_mean(x, (0, 1, 2)))
        self.scale.assign(self.scale / (1.0 + tf.reduce_max(tf.abs(x))))
        return tf.tanh(y - self.mean) * self.scale


ASSIGNING = {
    "spectral normalization": lambda: layers.SpectralNormalization(layers.Conv2D(8, 3, padding="same")),
    "a layer of the user's": Centred,
}


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("make", ASSIGNING.values(), ids=ASSIGNING)
def test_layers_that_assign_what_they_read(make, graph):
    x = tf.random.stateless_normal((4, 8, 8, 8), (1, 2))

    def run(wrap):
        keras.utils.set_random_seed(0)
        layer = make()
        model = keras.Sequential(
            [keras.Input((8, 8, 8)), layers.Dense(8), wrap(layer), layers.Flatten(), layers.Dense(1)]
        )

        def compute():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        grads = (tf.function(compute) if graph else compute)()
        return [*grads, *(v.numpy() for v in layer.variables)]

    plain = run(as_it_is)
    for wrap in (wrapper("Compress"), ct.Recompute):
        for found, expected in zip(run(wrap), plain):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("wrap", [ct.Recompute, wrapper("Compress")], ids=["Recompute", "Compress"])
def test_a_loss_that_a_layer_adds_has_its_gradient_or_is_refused(wrap):
    x = tf.random.stateless_normal((64, 64), (1, 2))

    def run(wrap, graph):
        keras.utils.set_random_seed(0)
        layer = keras.Sequential([layers.Dense(64, activation="tanh", activity_regularizer="l2")])
        model = keras.Sequential([keras.Input((64,)), layers.Dense(64), wrap(layer), layers.Dense(1)])
        model.compile("sgd", "mse")

        def compute():
            with tf.GradientTape() as tape:
                loss = model.compute_loss(x=x, y=tf.zeros((64, 1)), y_pred=model(x, training=True))
            return [loss, *tape.gradient(loss, [v.value for v in model.trainable_variables])]

        return (tf.function(compute) if graph else compute)()

    assert relative_difference(run(wrap, True), run(as_it_is, False)) < 1e-6
    with pytest.raises(ValueError, match="must not add a loss in its call"):
        run(wrap, False)


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
