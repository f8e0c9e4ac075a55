"""Layers divided by rows and channels: windows over borders, strides, padding, batch normalization of all parts.

One CPU stands for all devices; test_stages.py has several.
"""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

import tf_comptrain as ct
from tf_comptrain.distribute import Stage
from tf_comptrain.placement.values import Send

DIVIDED = ("pad", "conv", "strided", "norm", "relu", "point", "sum", "pool")


def network(rows):
    keras.utils.set_random_seed(0)
    image = keras.Input((11, 9, 3))
    x = layers.ZeroPadding2D(((2, 1), (0, 1)), name="pad")(image)
    x = layers.Conv2D(8, 3, padding="same", activation="relu", name="conv")(x)
    x = layers.Conv2D(9, 3, strides=2, padding="same", name="strided")(x)
    x = layers.ReLU(name="relu")(layers.BatchNormalization(name="norm", momentum=0.9)(x))
    y = layers.DepthwiseConv2D(2, padding="same", name="point") if rows else layers.Conv2D(9, 1, name="point")
    x = layers.Add(name="sum")([x, y(x)])
    x = layers.MaxPooling2D(3, 2, padding="same", name="pool")(x)
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    model = keras.Model(image, layers.Dense(4, name="out")(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
    return model


def data():
    random = np.random.default_rng(0)
    return random.normal(size=(24, 11, 9, 3)).astype(np.float32), random.integers(0, 4, 24)


def trained(model):
    losses = model.fit(*data(), batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, np.concatenate([np.ravel(weight) for weight in model.get_weights()])


@pytest.mark.long("*-3", "channels-*")
@pytest.mark.parametrize(("split", "count"), [("rows", 2), ("rows", 3), ("channels", 2), ("channels", 3)])
def test_divided_layers_train_as_one_device_does(split, count):
    model = network(split == "rows")
    stages = [Stage(DIVIDED, tuple(range(count)), split), Stage(("mean", "out"), (0,))]
    ct.distribute.place(model, stages, devices=["CPU:0"] * count)
    (loss, weights), (one_loss, one_weights) = trained(model), trained(network(split == "rows"))
    np.testing.assert_allclose(loss, one_loss, rtol=1e-6)
    np.testing.assert_allclose(weights, one_weights, rtol=0, atol=1e-6)
    plain = network(split == "rows")
    plain.set_weights(model.get_weights())
    predictions = [one.predict(data()[0], verbose=0) for one in (model, plain)]
    np.testing.assert_allclose(*predictions, atol=1e-6)  # by the moving statistics


def test_rows_and_channels_follow_each_other():
    model = network(rows=False)
    stages = [
        Stage(DIVIDED[:4], (0, 1), "rows"),
        Stage(DIVIDED[4:7], (1, 2), "channels"),
        Stage(("pool",), (0, 1, 2), "rows"),
        Stage(("mean", "out"), (1, 2)),
    ]
    ct.distribute.place(model, stages, devices=["CPU:0"] * 3)
    (loss, weights), (one_loss, one_weights) = trained(model), trained(network(rows=False))
    np.testing.assert_allclose(loss, one_loss, rtol=1e-6)
    np.testing.assert_allclose(weights, one_weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "split"),
    [
        (layers.Conv2D(8, 3, dilation_rate=2), "rows"),
        (layers.Conv2D(8, 3, groups=4), "channels"),
        (layers.AveragePooling2D(2, padding="same"), "rows"),
        (layers.Conv2D(8, 3, activation="softmax"), "channels"),
        (layers.Activation("log_softmax"), "channels"),
        (layers.Softmax(), "channels"),
        (layers.LayerNormalization(), "channels"),
        (layers.BatchNormalization(axis=1), "rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_layers_that_cannot_be_divided_are_named(layer, split):
    image = keras.Input((8, 8, 8))
    model = keras.Model(image, layer(image))
    with pytest.raises(ValueError, match=f"split='{split}'.*'{layer.name}'"):
        ct.distribute.place(model, [Stage((layer.name,), (0, 1), split)], devices=["CPU:0"] * 2)


def test_more_devices_than_rows():
    image = keras.Input((2, 8, 8))
    model = keras.Model(image, layers.ReLU(name="relu")(image))
    with pytest.raises(ValueError, match="every device gets some of the rows.*'relu'"):
        ct.distribute.place(model, [Stage(("relu",), (0, 1, 2), "rows")], devices=["CPU:0"] * 3)


@pytest.mark.parametrize("codec", ["zvc", "plane"])
def test_a_sent_tensor_is_within_the_bound_and_its_gradient_is_as_it_is(codec):
    x = np.random.default_rng(0).normal(size=(4, 16, 16, 8)).astype(np.float32)
    send = Send(ct.codecs.get(codec), ct.ErrorBound(0.05, relative=False))

    @tf.function(autograph=False)
    def sent(x, dy):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = send(x, "CPU:0", "CPU:0")
        return y, tape.gradient(y, x, dy)

    y, gradient = sent(tf.constant(x), tf.constant(x * 3))
    assert np.abs(y - x).max() <= (0 if codec == "zvc" else 0.05)
    assert codec == "zvc" or np.abs(y - x).max() > 0
    np.testing.assert_array_equal(gradient, x * 3)
