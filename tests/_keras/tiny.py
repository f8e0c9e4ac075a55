"""The smallest models that show what `_keras` answers of one."""

import tensorflow as tf
from tensorflow import keras

layers = keras.layers


def network(compiled=True, **kwargs):
    """Two dense layers; SGD with momentum on the mean squared error, without XLA."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    hidden = layers.Dense(4, activation="relu", name="hidden")(inputs)
    model = keras.Model(inputs, layers.Dense(2, name="last")(hidden))
    if compiled:
        given = {"optimizer": keras.optimizers.SGD(0.1, momentum=0.9), "loss": "mse", "jit_compile": False}
        model.compile(**{**given, **kwargs})
    return model


def batch(samples=4):
    x = tf.reshape(tf.range(3.0 * samples) / 10.0, (samples, 3))
    return x, tf.ones((samples, 2))


def fit(model, steps=1, **kwargs):
    x, y = batch(4 * steps)
    return model.fit(x, y, batch_size=4, verbose=0, shuffle=False, **kwargs)
