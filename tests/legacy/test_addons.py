"""The legacy lane: TensorFlow 2.15, Keras 2 and TensorFlow Addons. Run by `make test-legacy`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_addons as tfa

import tf_comptrain as ct
from tf_comptrain import native
from tf_comptrain.codecs import State


@pytest.fixture
def data():
    random = np.random.default_rng(1)
    x = random.normal(size=(256, 16, 16, 3)).astype("float32")
    return x, (x.mean(axis=(1, 2, 3)) > 0).astype("int32")


def three_layer_model():
    """Three layers with weights, one of Addons' activations and one of its optimizers."""
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((16, 16, 3)),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation=tfa.activations.mish),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(2),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model, tfa.optimizers.LAMB(0.02), loss


def test_this_is_the_legacy_lane():
    assert tf.__version__.startswith("2.15.")
    assert keras.__version__.startswith("2.")
    assert native.library_path().name == "_comptrain_ops_tf2_15.so"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_ops_hold_the_bound(dtype):
    x = tf.cast(tf.nn.relu(tf.random.stateless_normal([4, 8, 8, 32], seed=(1, 2))), dtype)
    bound = 0.125
    state = tf.constant(State(bound_set=bound), tf.float32)
    y, stream, _ = native.ops().comptrain_compress(x, state, mid_rise=True)
    x_hat = native.ops().comptrain_decompress(stream, tf.shape(x), x, state=[], T=x.dtype)
    assert np.array_equal(tf.cast(y, "float32"), tf.cast(x, "float32"))
    assert tf.size(stream) < tf.size(x) * x.dtype.size
    half_ulp = 0 if dtype == "float32" else 4 * {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    error = tf.abs(tf.cast(x_hat, "float64") - tf.cast(x, "float64"))
    assert tf.reduce_max(error) <= bound + half_ulp
    assert np.array_equal(x_hat == 0, x == 0)


def test_three_layers_train_as_plain_ones_do(data):
    losses = {}
    for kind in ("plain", "compressed"):
        model, optimizer, loss = three_layer_model()
        report = ct.compress_model(model) if kind == "compressed" else None
        model.compile(optimizer, loss)
        history = model.fit(*data, batch_size=32, epochs=4, verbose=0, shuffle=False)
        losses[kind] = history.history["loss"]
    assert "conv2d" in str(report)
    assert losses["compressed"][-1] < losses["compressed"][0]
    assert losses["compressed"] != losses["plain"], "nothing was compressed"
    np.testing.assert_allclose(losses["compressed"], losses["plain"], rtol=0.02)


def test_eager_models_train_as_plain_ones(data):
    losses = []
    for compress in (False, True):
        model, optimizer, loss = three_layer_model()
        if compress:
            ct.compress_model(model)
        model.compile(optimizer, loss, run_eagerly=True)
        losses.append(model.fit(*data, batch_size=32, verbose=0, shuffle=False).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_saved_model_is_a_plain_one(data, tmp_path):
    model, optimizer, loss = three_layer_model()
    ct.compress_model(model)
    model.compile(optimizer, loss)
    model.fit(*data, batch_size=32, epochs=1, verbose=0)
    model.save_weights(tmp_path / "weights.h5")
    plain, _, _ = three_layer_model()
    plain.load_weights(tmp_path / "weights.h5")
    np.testing.assert_array_equal(plain.predict(data[0], verbose=0), model.predict(data[0], verbose=0))


def test_what_needs_keras_3_says_so(data):
    with pytest.raises(RuntimeError, match="needs Keras 3.*Use a fixed one"):
        ct.elastic_batch(data, 32)
    model, optimizer, loss = three_layer_model()
    model.compile(optimizer, loss)
    with pytest.raises(RuntimeError, match="needs Keras 3.*Use model.fit"):
        ct.fit(model, *data)
