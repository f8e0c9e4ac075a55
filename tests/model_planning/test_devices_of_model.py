"""A model as a chain of layers, and its plan over described devices."""

from pathlib import Path

import pytest
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.model_planning.devices import chain_of_model
from tf_comptrain.planner import DevicePlan
from tf_comptrain.planner.layers import check_chain
from tf_comptrain.planner.synthetic import DEVICE

HARDWARE = Path(__file__).resolve().parents[2] / "examples" / "hardware"


def network():
    x = first = keras.Input((16, 16, 3))
    x = start = keras.layers.Conv2D(8, 3, padding="same", name="one")(x)
    x = keras.layers.ReLU(name="relu")(x)
    x = keras.layers.Conv2D(8, 3, padding="same", name="two")(x)
    x = keras.layers.Add(name="add")([start, x])
    x = keras.layers.GlobalAveragePooling2D(name="mean")(x)
    model = keras.Model(first, keras.layers.Dense(5, name="dense")(x))
    model.compile("adam", "mse")
    return model


def test_chain():
    chain = chain_of_model(network(), 4, DEVICE, offload=True)
    check_chain(chain)
    layers = {layer.name: layer for layer in chain.layers}
    plane = 4 * 16 * 16 * 8 * 4
    assert list(layers) == ["one", "relu", "two", "add", "mean", "dense"]
    assert [layers[name].output_bytes for name in ("one", "relu", "mean")] == [plane, plane, 4 * 8 * 4]
    assert [layers[name].skip_bytes for name in layers] == [0, plane, plane, 0, 0, 0]
    assert layers["one"].weight_bytes == 4 * (3 * 3 * 3 * 8 + 8)
    assert layers["two"].halo_bytes == plane // 16
    assert "rows" in layers["two"].splits and "rows" not in layers["dense"].splits
    assert [saved.bytes for saved in layers["two"].saved] == [plane]
    assert not layers["relu"].saved and not layers["add"].saved
    assert 2 <= chain.slots < 2.1


def test_plan():
    plan = ct.plan(network(), 64, devices=4, hardware=HARDWARE / "h200x4.json", budget_s=2)
    assert isinstance(plan, DevicePlan) and plan.feasible
    assert [name for stage in plan.stages for name in stage.layers] == [
        "one",
        "relu",
        "two",
        "add",
        "mean",
        "dense",
    ]


def test_mistakes():
    with pytest.raises(ValueError, match="`memory` is missing"):
        ct.plan(network(), 64)
    shared = keras.layers.Dense(4, name="shared")
    first = keras.Input((4,))
    with pytest.raises(ValueError, match="calls 'shared' more than once"):
        ct.plan(keras.Model(first, shared(shared(first))), 64, devices=2)
