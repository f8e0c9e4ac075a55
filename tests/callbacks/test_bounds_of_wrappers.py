"""`AdaptiveErrorBound` steers what `Compress` wrappers hold as it steers the traced step."""

import functools

import numpy as np
import pytest
from models import compiled
from needs_xla import needs_xla
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation

layers = keras.layers
LAYERS = {
    "convolution": lambda: layers.Conv2D(12, 3, strides=2, activation="relu", name="layer"),
    "transposed": lambda: layers.Conv2DTranspose(6, 3, strides=2, name="layer"),
    "depthwise": lambda: layers.DepthwiseConv2D(3, depth_multiplier=2, name="layer"),
    "dense": lambda: layers.Dense(12, name="layer"),
}


def network(make, wrap, **how):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((12, 12, 8))
    h = layers.Conv2D(8, 1, name="first")(inputs)
    h = layers.Flatten()(wrap(make())(h))
    model = keras.Model(inputs, layers.Dense(10, name="last")(h))
    return compiled(model, keras.optimizers.SGD(0.05), **how)


def fit(model, steps=1, **how):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16 * steps, 12, 12, 8)).astype("float32"), rng.integers(0, 10, 16 * steps)
    callback = ct.AdaptiveErrorBound(warmup=0, smoothing=0.0, limits=(1e-4, 0.5), **how)
    model.fit(x, y, batch_size=16, verbose=0, shuffle=False, callbacks=[callback])
    return {update.layer.split(" -> ")[-1].split("/")[-2]: update for update in callback.updates}


@functools.lru_cache
def law_of_the_traced_step(name):
    model = network(LAYERS[name], lambda layer: layer, jit_compile=False)
    ct.compress_model(model)
    return fit(model)["layer"]


@pytest.mark.long("{'jit_compile': True}-*", "{'run_eagerly': True}-*", but=["*-dense"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    "how",
    [{"jit_compile": False}, pytest.param({"jit_compile": True}, marks=needs_xla), {"run_eagerly": True}],
    ids=str,
)
def test_the_law_of_a_wrapper_is_that_of_the_traced_step(name, how):
    """Errors per unit of bound, and the error that the gradient is meant to have."""
    expected = law_of_the_traced_step(name)
    found = fit(network(LAYERS[name], ct.Compress, **how))
    assert list(found) == ["layer"]
    found = found["layer"]
    assert found.predicted_sigma / found.bound == pytest.approx(
        expected.predicted_sigma / expected.bound, rel=0.03
    )
    assert found.source == expected.source


def test_bounds_follow_and_the_op_uses_them():
    model = network(LAYERS["convolution"], ct.Compress, jit_compile=False)
    updates = fit(model, steps=4, interval=2)
    (site,) = instrumentation(model).sites().values()
    assert site.read_state().bound_used == pytest.approx(updates["layer"].bound)
    assert site.read_state().bound_used != pytest.approx(0.2 * site.read_state().running_sigma, rel=0.01)


def test_wrappers_beside_the_traced_step():
    model = network(LAYERS["convolution"], ct.Compress, jit_compile=False)
    ct.compress_model(model)
    assert set(fit(model)) == {"layer", "last"}
    ct.restore_model(model)
    assert set(fit(model)) == {"layer"}


def test_an_activation_that_is_not_linear_keeps_its_bound():
    model = network(lambda: layers.Dense(12, activation="tanh", name="layer"), ct.Compress, jit_compile=False)
    assert fit(model) == {}
