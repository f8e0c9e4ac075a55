"""The law in a traced step: the same dy, the tensor against what its stream gives back."""

import keras
import numpy as np
import pytest
from models import by_layer, compiled, images

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation

layers = keras.layers


def every_linear_layer():
    """Every kind of layer the law speaks of, a shared tensor, a batch normalization.

    Of 64 channels: the error of gamma, measured on so many numbers, is itself known to 9%.
    """
    inputs = keras.Input((16, 16, 3))
    h = layers.Conv2D(8, 3, padding="same", name="stem")(inputs)  # reads the batch
    h = layers.Conv2D(16, 3, padding="same", activation="relu", name="conv")(h)
    shortcut = layers.Conv2D(64, 1, name="shortcut")(h)
    h = layers.Conv2D(64, 1, use_bias=False, name="conv_bn")(h)
    h = layers.ReLU()(layers.BatchNormalization(name="bn")(h))
    h = layers.Add()([h, shortcut])
    h = layers.DepthwiseConv2D(3, strides=2, padding="same", name="depthwise")(h)
    h = layers.ReLU()(h)
    h = layers.Conv2DTranspose(12, 3, strides=2, padding="same", activation="relu", name="transposed")(h)
    h = layers.AveragePooling2D(4)(
        h
    )  # the largest ones would prefer some phases of the stride, as the law does not
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
    checks = by_layer(check for check in found if check.gradient == "kernel")
    expected = ["conv", "shortcut", "conv_bn", "depthwise", "transposed", "einsum", "dense"]
    assert sorted(checks) == sorted(expected)  # the last dense layer's 48 inputs are not worth holding
    ratios = {name: round(check.ratio, 3) for name, check in checks.items()}
    assert all(0.8 <= ratio <= 1.25 for ratio in ratios.values()), ratios
    assert all(0.05 < check.bound_over_sigma < 0.26 for check in found)
    for check in found:  # an error at right angles to the gradient turns it by as much
        turned = 1 / np.hypot(1, check.measured_sigma / check.gradient_rms)
        assert check.cosine == pytest.approx(turned, abs=0.01), check
    batch_norm = [check for check in found if check.layer.endswith("bn/gamma")]
    holds = [(check.gradient, check.holds) for check in batch_norm]
    assert holds == [("gamma", True), ("input", True)], batch_norm


def test_a_check_leaves_the_model_as_it_was(trained):
    model, x, y = trained
    handle = instrumentation(model)
    before = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    states = {name: site.read_state() for name, site in handle.sites().items()}
    assert len(states) == 7
    ct.check_error_law(model, x, y)
    for now, then in zip((*model.variables, *model.optimizer.variables), before):
        np.testing.assert_array_equal(now.numpy(), then)
    assert {name: site.read_state() for name, site in handle.sites().items()} == states
    assert handle.held._law.errors is None and handle.collecting is None


def test_a_tensor_that_two_layers_read_is_held_once(trained):
    checks = by_layer(ct.check_error_law(*trained))
    operations = {name: checks[name].layer.partition(" -> ")[0] for name in ("shortcut", "conv_bn", "conv")}
    assert operations["shortcut"] == operations["conv_bn"] != operations["conv"]


def test_both_parts_of_a_separable_convolution():
    parts = [layers.Conv2D(8, 3, activation="relu"), layers.SeparableConv2D(8, 3), layers.Flatten()]
    model = compiled(keras.Sequential([keras.Input((16, 16, 8)), *parts, layers.Dense(10)]))
    ct.compress_model(model)
    x, y = images(32, channels=8)
    model.fit(x, y, verbose=0)
    weights = {check.layer.rpartition("/")[2]: check.holds for check in ct.check_error_law(model, x, y)}
    assert weights == {"depthwise_kernel": True, "pointwise_kernel": True, "kernel": True}


def test_needs_a_compressed_and_compiled_model():
    model = keras.Sequential([keras.Input((16, 16, 8)), layers.Conv2D(4, 3)])
    with pytest.raises(ValueError, match="compress_model"):
        ct.check_error_law(model, np.zeros((1, 16, 16, 8)), np.zeros(1))
    ct.compress_model(model)
    with pytest.raises(ValueError, match="model.compile"):
        ct.check_error_law(model, np.zeros((1, 16, 16, 8)), np.zeros(1))


@pytest.mark.parametrize("gamma", [1.0, 4.0])
def test_kernels_behind_layer_normalizations(gamma):
    """What they read is made of the normalized rows, whose errors gamma multiplies."""
    keras.utils.set_random_seed(0)
    scaled = keras.initializers.Constant(gamma)
    x = inputs = keras.Input((32, 64))
    for _ in range(2):
        x = layers.Dense(64, activation="gelu")(x)
        x = layers.Dense(48)(layers.LayerNormalization(gamma_initializer=scaled)(x))
    model = keras.Model(inputs, x)
    model.compile("sgd", "mse", jit_compile=False)
    ct.compress_model(model)
    rng = np.random.default_rng(0)
    checks = ct.check_error_law(
        model, rng.normal(size=(32, 32, 64)).astype("f4"), rng.normal(size=(32, 32, 48))
    )
    behind = [check for check in checks if "LayerNorm" in check.layer]
    assert len(behind) == 2
    assert all(0.9 < check.measured_sigma / check.predicted_sigma < 1.1 for check in behind)
