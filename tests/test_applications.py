"""Every model of keras.applications: no layer without a rule, and the losses of plain Keras when the bound is tight.

All of them with COMPTRAIN_LONG=1 (hours, and 16 GB for the largest); a few otherwise.
"""

import os

import numpy as np
import pytest
from tensorflow import keras

import tf_comptrain as ct

ALL = [name for name in sorted(dir(keras.applications)) if name[:1].isupper()]
LONG = os.environ.get("COMPTRAIN_LONG") == "1"
# Where the smallest image that a model takes is not the 32 pixels of most.
SIZES = {"Xception": 71, "InceptionV3": 75, "InceptionResNetV2": 75, "NASNetLarge": 331, "NASNetMobile": 224}
STEPS, BATCH = 3, 4


def build(name):
    keras.utils.set_random_seed(0)
    size = SIZES.get(name, 32)
    arguments = {} if name.startswith("NASNet") else {"include_top": False, "pooling": "avg"}
    base = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), **arguments)
    return base, size


def losses(name, compress):
    base, size = build(name)
    if compress:
        ct.compress_model(base, error_bound=1e-6)
    base.compile(keras.optimizers.SGD(1e-3), "mse")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, size, size, 3)).astype("float32")
    y = rng.normal(size=(BATCH, base.output_shape[-1])).astype("float32")
    history = base.fit(x, y, batch_size=BATCH, epochs=STEPS, shuffle=False, verbose=0).history["loss"]
    keras.backend.clear_session()
    return history


@pytest.mark.parametrize("name", ALL if LONG else ["ConvNeXtTiny", "EfficientNetV2B0", "MobileNetV3Small"])
def test_converts_with_no_unknown_layer(name):
    base, _ = build(name)
    report = ct.compress_model(base)
    unknown = [
        row for row in report.skipped if "loss" not in row.note
    ]  # the softmax that a loss looks behind
    assert not unknown


@pytest.mark.parametrize("name", ALL if LONG else ["MobileNetV3Small"])
def test_losses_of_plain_keras(name):
    plain, ours = losses(name, False), losses(name, True)
    print(name, plain, ours)
    np.testing.assert_allclose(ours, plain, rtol=1e-3)
    assert plain[-1] != plain[0]
