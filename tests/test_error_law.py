"""The law on real layers: the same dy, the input against what its stream gives back."""

import keras
import numpy as np
import pytest
from models import compiled, images

import tf_comptrain as ct
from tf_comptrain.error_law import law_sites
from tf_comptrain.model import instrumentation

layers = keras.layers


def every_linear_layer():
    """Every kind of layer the law speaks of, a shared tensor, a batch normalization."""
    inputs = keras.Input((16, 16, 3))
    h = layers.Conv2D(16, 3, padding="same", activation="relu", name="conv")(inputs)
    shortcut = layers.Conv2D(16, 1, name="shortcut")(h)
    h = layers.Conv2D(16, 3, padding="same", use_bias=False, name="conv_bn")(h)
    h = layers.ReLU()(layers.BatchNormalization(name="bn")(h))
    h = layers.Add()([h, shortcut])
    h = layers.DepthwiseConv2D(3, strides=2, padding="same", name="depthwise")(h)
    h = layers.ReLU()(h)
    h = layers.Conv2DTranspose(12, 3, strides=2, padding="same", activation="relu", name="transposed")(h)
    h = layers.MaxPooling2D(4)(h)
    h = layers.Reshape((16, 12))(h)
    h = layers.EinsumDense("abc,cde->abde", (16, 3, 8), activation="relu", name="einsum")(h)
    h = layers.Flatten()(h)
    h = layers.Dense(48, activation="relu", name="dense")(h)
    model = keras.Model(inputs, layers.Dense(10, name="logits")(h))
    return compiled(model, keras.optimizers.Adam(0.003))


@pytest.fixture(scope="module")
def trained():
    keras.utils.set_random_seed(1)
    model = every_linear_layer()
    ct.compress_model(model)
    x, y = images(512)
    model.fit(x, y, batch_size=32, epochs=2, verbose=0)
    return model, x[:128], y[:128]


def test_measured_error_agrees_with_the_law(trained):
    found = ct.check_error_law(*trained)
    checks = {check.layer: check for check in found if check.gradient == "kernel"}
    expected = ["conv", "shortcut", "conv_bn", "depthwise", "transposed", "einsum", "dense"]
    assert sorted(checks) == sorted(expected)  # the last dense layer's 48 inputs are not worth holding
    ratios = {name: round(check.ratio, 3) for name, check in checks.items()}
    assert all(0.8 <= ratio <= 1.25 for ratio in ratios.values()), ratios
    assert all(0.05 < check.bound_over_sigma < 0.2 for check in found)
    batch_norm = [(check.gradient, check.holds) for check in found if check.layer == "bn"]
    assert batch_norm == [("gamma", True), ("input", True)], found[-2:]


def test_a_check_leaves_the_model_as_it_was(trained):
    model, x, y = trained
    sites = instrumentation(model).sites().values()
    before = [w.copy() for w in model.get_weights()]
    states = [site.read_state() for site in sites]
    codecs = [site.codec for site in sites]
    ct.check_error_law(model, x, y)
    for now, then in zip(model.get_weights(), before):
        np.testing.assert_array_equal(now, then)
    assert [site.read_state() for site in sites] == states
    assert [site.codec for site in sites] == codecs
    assert all(site.statistics is None for site in sites)


def test_tensors_shared_by_two_layers_have_one_holder(trained):
    model, *_ = trained
    holders = {law.name: law.site.holder.name for law in law_sites(instrumentation(model))}
    assert len({holders["shortcut"], holders["conv_bn"]}) == 1


def test_the_law_does_not_speak_of_separable_convolutions():
    model = compiled(keras.Sequential([keras.Input((16, 16, 8)), layers.SeparableConv2D(4, 3)]))
    ct.compress_model(model)
    assert law_sites(instrumentation(model)) == []


def test_needs_a_compressed_and_compiled_model():
    model = keras.Sequential([keras.Input((16, 16, 8)), layers.Conv2D(4, 3)])
    with pytest.raises(ValueError, match="compress_model"):
        ct.check_error_law(model, np.zeros((1, 16, 16, 8)), np.zeros(1))
    ct.compress_model(model)
    with pytest.raises(ValueError, match="model.compile"):
        ct.check_error_law(model, np.zeros((1, 16, 16, 8)), np.zeros(1))
