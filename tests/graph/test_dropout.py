"""What a dropout leaves of an activation is made again of the activation and the dropout's bits."""

import numpy as np
import pytest
from models import gradients
from tensorflow import keras

import tf_comptrain as ct

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(32, 24, 32)).astype("float32"), RNG.normal(size=(32, 24, 8)).astype("float32")


def block(activation):
    """As in a vision transformer: the activation's gradient reads its argument, the second product what is left."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input(X.shape[1:])
    for number in range(2):
        x = keras.layers.Dense(128, activation=activation)(x)
        x = keras.layers.Dropout(0.3, seed=number)(x)
        x = keras.layers.Dense(32)(x)
    model = keras.Model(inputs, keras.layers.Dense(8)(x))
    model.compile("sgd", "mse", jit_compile=False)
    return model


@pytest.mark.parametrize("codec, bound", [("plane", 0.1), ("zvc", 1e-6)])
@pytest.mark.parametrize("activation", ["gelu", "elu", "relu"])
def test_gradients(activation, codec, bound):
    loss, plain = gradients(block(activation), X, Y)
    model = block(activation)
    ct.compress_model(model, codec=codec)
    ours, found = gradients(model, X, Y)
    assert ours == pytest.approx(loss, rel=1e-6)
    for (path, gradient), (_, true) in zip(found.items(), plain.items()):
        assert np.linalg.norm(gradient - true) <= bound * np.linalg.norm(true), path


def test_it_is_held_once():
    model = block("gelu")
    report = ct.compress_model(model)
    model.train_on_batch(X, Y)
    wide = [(row.layer, row.storage) for row in report.rows if row.value_bytes and row.shape[-1:] == (128,)]
    assert sorted(storage for _, storage in wide) == ["bitmask"] * 2 + ["compress"] * 2, wide
