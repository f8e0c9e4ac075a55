"""Callbacks, wrappers, strategies, files, memory tools and plans with Keras 2 and an optimizer of Addons."""

import logging

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_addons as tfa

import tf_comptrain as ct
from tf_comptrain.memory.batches import batch_of

keras = tf.keras
BATCH = 32
RNG = np.random.default_rng(0)
X = RNG.normal(size=(BATCH, 48, 48, 3)).astype("float32")
Y = RNG.integers(0, 10, BATCH)


def network(jit_compile=False, wrap=lambda layer: layer):
    keras.utils.set_random_seed(1)
    layers = [keras.Input(X.shape[1:])]
    for _ in range(6):
        layers += [wrap(keras.layers.Conv2D(16, 3, padding="same")), keras.layers.ReLU()]
    layers += [wrap(tfa.layers.GroupNormalization(groups=4)), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tfa.optimizers.LAMB(0.01), loss, jit_compile=jit_compile)
    return model


def trained(model, **how):
    return model.fit(X, Y, BATCH, epochs=3, verbose=0, shuffle=False, **how).history


def compressed(**how):
    model = network()
    ct.compress_model(model, check=False, **how)
    return model


@pytest.fixture(scope="module")
def plain():
    return trained(network())["loss"]


@pytest.mark.parametrize("wrapper", [ct.Compress, ct.Recompute])
def test_wrappers(wrapper, plain):
    np.testing.assert_allclose(trained(network(wrap=wrapper))["loss"], plain, rtol=0.02)


def test_bounds_adapt(plain):
    history = trained(compressed(), callbacks=[ct.AdaptiveErrorBound(), ct.MemoryLogger()])
    np.testing.assert_allclose(history["loss"], plain, rtol=0.02)
    assert len(history["stream_bytes"]) == 3


def test_offload_is_lossless(plain, tmp_path):
    model = compressed(storage=ct.Offload(folder=str(tmp_path), codec="zvc"))
    np.testing.assert_allclose(trained(model)["loss"], plain, rtol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision(policy):
    keras.mixed_precision.set_global_policy(policy)
    try:
        ours, its = trained(compressed())["loss"], trained(network())["loss"]
    finally:
        keras.mixed_precision.set_global_policy("float32")
    np.testing.assert_allclose(ours, its, rtol=0.02)


def test_a_strategy(plain):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = network()
    ct.compress_model(model)
    np.testing.assert_allclose(trained(model)["loss"], plain, rtol=0.02)


def test_under_xla_it_is_plain_and_says_so(plain, caplog):
    model = network(jit_compile=True)
    with caplog.at_level(logging.WARNING):
        report = ct.compress_model(model)
        found = trained(model)["loss"]
    np.testing.assert_allclose(found, plain, rtol=1e-4)
    assert "runs as plain Keras" in str(report)


def test_saved_models_load_without_this_package(tmp_path):
    model = compressed()
    trained(model)
    model.save(tmp_path / "model.keras")
    tf.saved_model.save(model, str(tmp_path / "saved"))
    expected = model.predict(X, verbose=0)
    custom = {"GroupNormalization": tfa.layers.GroupNormalization, "LAMB": tfa.optimizers.LAMB}
    loaded = keras.models.load_model(tmp_path / "model.keras", custom)
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), expected)
    np.testing.assert_allclose(
        tf.saved_model.load(str(tmp_path / "saved"))(X, training=False), expected, rtol=1e-5, atol=1e-6
    )


def test_what_is_measured():
    model = compressed()
    ours, its = (ct.memory.measure_step(each, X, Y) for each in (model, network()))
    assert 0 < ours.peak_bytes < 0.7 * its.peak_bytes
    assert ours.saved_bytes < 0.3 * its.saved_bytes
    assert "streams" in str(ct.memory.explain_peak(model, X, Y))
    assert "group_normalization" in str(ct.memory.report(model, X, Y))


def test_a_plan_keeps_within_its_limit():
    plain = ct.memory.measure_step(network(), X, Y)
    model = network()
    limit = int(plain.resting_bytes + 0.7 * plain.peak_bytes)
    ct.compress_model(model, memory=limit, batch_size=BATCH)
    trained(model)
    found = ct.memory.measure_step(model, *batch_of(model, X, Y))
    assert found.resting_bytes + found.peak_bytes <= 1.1 * limit


def test_what_needs_keras_3_says_so_before_training():
    model = compressed()
    with pytest.raises(RuntimeError, match="AdaptiveBatchSize needs Keras 3"):
        trained(model, callbacks=[ct.AdaptiveTraining(memory="8GB")])
