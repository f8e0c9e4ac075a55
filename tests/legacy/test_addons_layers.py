"""Layers, activations and optimizers of TensorFlow Addons train compressed as they do plain."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_addons as tfa

import tf_comptrain as ct

keras = tf.keras
SAMPLES, BATCH = 32, 16
RNG = np.random.default_rng(1)
IMAGES = RNG.normal(size=(SAMPLES, 12, 12, 4)).astype("float32")
CLASSES = (IMAGES.mean(axis=(1, 2, 3)) > 0).astype("int32")


class _Attention(keras.layers.Layer):
    """Addons' attention of the rows of an image."""

    def __init__(self):
        super().__init__()
        self.inner = tfa.layers.MultiHeadAttention(head_size=4, num_heads=2)

    def call(self, x, training=None):
        rows = tf.reshape(x, [-1, x.shape[1], x.shape[2] * x.shape[3]])
        return tf.reshape(self.inner([rows, rows], training=training), tf.shape(x))


class _Crossing(keras.layers.Layer):
    """Addons' crossing of the rows of an image with themselves."""

    def __init__(self):
        super().__init__()
        self.inner = tfa.layers.PolynomialCrossing()

    def call(self, x):
        rows = tf.reshape(x, [-1, x.shape[1] * x.shape[2] * x.shape[3]])
        return tf.reshape(self.inner([rows, tf.tanh(rows)]), tf.shape(x))


class _Depth(keras.layers.Layer):
    """Addons' way around a branch, for some of the samples."""

    def __init__(self):
        super().__init__()
        self.inner = tfa.layers.StochasticDepth(0.8)

    def call(self, x, training=None):
        return self.inner([x, x * 0.5], training=training)


LAYERS = {
    "AdaptiveAveragePooling2D": lambda: tfa.layers.AdaptiveAveragePooling2D(4),
    "AdaptiveMaxPooling2D": lambda: tfa.layers.AdaptiveMaxPooling2D(4),
    "SpectralNormalization": lambda: tfa.layers.SpectralNormalization(keras.layers.Conv2D(8, 3)),
    "FilterResponseNormalization": tfa.layers.FilterResponseNormalization,
    "GELU": tfa.layers.GELU,
    "GroupNormalization": lambda: tfa.layers.GroupNormalization(groups=4),
    "InstanceNormalization": tfa.layers.InstanceNormalization,
    "Maxout": lambda: tfa.layers.Maxout(4),
    "MultiHeadAttention": _Attention,
    "NoisyDense": lambda: tfa.layers.NoisyDense(8),
    "PolynomialCrossing": _Crossing,
    "SpatialPyramidPooling2D": lambda: tfa.layers.SpatialPyramidPooling2D([1, 2]),
    "StochasticDepth": _Depth,
    "TLU": tfa.layers.TLU,
    "WeightNormalization": lambda: tfa.layers.WeightNormalization(keras.layers.Conv2D(8, 3)),
}
ACTIVATIONS = ("gelu", "hardshrink", "lisht", "mish", "snake", "softshrink", "sparsemax", "tanhshrink")
OPTIMIZERS = {
    # With the default epsilon a gradient that is rounding alone moves a weight as far as any other.
    "AdamW": lambda: tfa.optimizers.AdamW(1e-4, 0.01, epsilon=1e-3),
    "AveragedSGD": lambda: tfa.optimizers.MovingAverage(keras.optimizers.legacy.SGD(0.05)),
    "COCOB": tfa.optimizers.COCOB,
    "ConditionalGradient": lambda: tfa.optimizers.ConditionalGradient(0.99, 10.0),
    "LAMB": lambda: tfa.optimizers.LAMB(0.01),
    "LazyAdam": lambda: tfa.optimizers.LazyAdam(0.01),
    "Lookahead": lambda: tfa.optimizers.Lookahead(keras.optimizers.legacy.Adam(0.01)),
    "NovoGrad": lambda: tfa.optimizers.NovoGrad(0.01),
    "RectifiedAdam": lambda: tfa.optimizers.RectifiedAdam(0.01),
    "SGDW": lambda: tfa.optimizers.SGDW(1e-4, 0.05, momentum=0.9),
    "SWA": lambda: tfa.optimizers.SWA(keras.optimizers.legacy.SGD(0.05), 1, 1),
    "Yogi": lambda: tfa.optimizers.Yogi(0.01),
}


def network(middle, activation="relu"):
    """A layer between two convolutions."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input(IMAGES.shape[1:])
    x = middle()(keras.layers.Conv2D(8, 3, padding="same", activation=activation)(inputs))
    if len(x.shape) == 4:
        x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(8, 1, activation="relu")(x))
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(x)))


def losses(make, optimizer=None, epochs=2, **how):
    """Of each epoch, and the weights at last; `how` as of compress_model, without it plain."""
    model = make()
    if how:
        ct.compress_model(model, check=False, **how)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer() if optimizer else keras.optimizers.SGD(0.05), loss)
    history = model.fit(IMAGES, CLASSES, BATCH, epochs, verbose=0, shuffle=False).history["loss"]
    return history, [variable.numpy() for variable in model.trainable_variables]


def check(make, optimizer=None):
    """Lossless as plain's to rounding, default near it, and something is held otherwise than as it is."""
    plain, weights = losses(make, optimizer)
    exact, exact_weights = losses(make, optimizer, codec="zvc")
    default, _ = losses(make, optimizer, codec="plane")
    np.testing.assert_allclose(exact, plain, rtol=1e-5)
    for ours, its in zip(exact_weights, weights):
        np.testing.assert_allclose(ours, its, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(default, plain, rtol=0.02)
    assert default != plain, "nothing was compressed"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer(layer):
    check(lambda: network(LAYERS[layer]))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation(activation):
    check(lambda: network(keras.layers.BatchNormalization, getattr(tfa.activations, activation)))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer(optimizer):
    check(lambda: network(keras.layers.BatchNormalization), OPTIMIZERS[optimizer])
