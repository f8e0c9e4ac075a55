"""Plans of models that leave nothing to choose, and what a plan leaves of `compile`."""

import numpy as np
import pytest
from own_cache import cache  # noqa: F401
from tensorflow import keras

import tf_comptrain as ct

layers = keras.layers
BATCH = 16
X = np.random.default_rng(0).normal(size=(BATCH, 8, 16)).astype("float32")


def compiled(outputs, loss="mse"):
    keras.utils.set_random_seed(0)
    inputs = keras.Input(X.shape[1:])
    model = keras.Model(inputs, outputs(inputs), name="small")
    model.compile("adam", loss, jit_compile=False)
    return model


@pytest.mark.long("lstm")
@pytest.mark.parametrize(
    "outputs",
    [lambda x: layers.Dense(1)(layers.Dense(64, "gelu")(layers.Flatten()(x))), layers.LSTM(8)],
    ids=["dense", "lstm"],
)
def test_everything_is_too_small_for_a_choice(outputs):
    model = compiled(outputs)
    report = ct.compress_model(model, memory="4GB", batch_size=BATCH, check=False)
    assert "no tensor is large enough for a choice" in report.table()
    history = model.fit(X, np.zeros((BATCH, model.output_shape[-1])), BATCH, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def test_targets_of_the_user_may_be_of_fewer_outputs_than_those_of_the_trials():
    def outputs(x):
        x = layers.Dense(32, "gelu")(layers.Flatten()(x))
        return {"p": layers.Dense(1, name="p")(x), "q": layers.Dense(5, name="q")(x)}

    model = compiled(outputs, {"q": "mse"})
    ct.compress_model(model, memory="4GB", batch_size=BATCH, check=False)
    assert not any(metric.built for metric in model.metrics[1:])  # all but the loss' own
    model.fit(X, {"q": np.zeros((BATCH, 5))}, BATCH, verbose=0)
    ct.restore_model(model)
    model.fit(X, {"q": np.zeros((BATCH, 5))}, BATCH, verbose=0)
