"""A model as a chain of layers, and its plan over described devices."""

from pathlib import Path

import pytest
from synthetic import DEVICE
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.model_planning.devices import chain_of_model
from tf_comptrain.planner import DevicePlan, StreamOption
from tf_comptrain.planner.layers import check_chain

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


STREAMS = {"codec": "plane", "error_bound": None, "policy": None}


def test_chain():
    model = network()
    chain = chain_of_model(model, 4, DEVICE, STREAMS, offload=True)
    many = chain_of_model(model, 4, DEVICE._replace(devices=10), STREAMS, offload=True)
    ct.compress_model(model)  # which it was not
    check_chain(chain)
    layers = {layer.name: layer for layer in chain.layers}
    plane = 4 * 16 * 16 * 8 * 4
    assert list(layers) == ["one", "relu", "two", "add", "mean", "dense"]
    assert [layers[name].output_bytes for name in ("one", "relu", "mean")] == [plane, plane, 4 * 8 * 4]
    assert [layers[name].skip_bytes for name in layers] == [0, plane, plane, 0, 0, 0]
    assert layers["one"].weight_bytes == 4 * (3 * 3 * 3 * 8 + 8)
    assert layers["two"].halo_bytes == plane // 16
    assert layers["two"].splits == ("batch", "channels", "rows") and "rows" not in layers["dense"].splits
    assert many.layers[2].splits == ("batch", "rows")  # of 8 channels each of 10 devices would not have one
    # What gradients read: each convolution's and dense layer's input, the ReLU's output, what the loss reads.
    saved = {name: saved.bytes for name, layer in layers.items() for saved in layer.saved}
    assert set(saved) == {"relu", "mean", "dense"}
    assert saved["relu"] == plane and saved["mean"] == 4 * 8 * 4
    (stream,) = (option for option in layers["relu"].saved[0].options if isinstance(option, StreamOption))
    assert stream.codec == "plane" and 0 < stream.bytes < plane / 4
    assert [layer.entry_bytes for layer in chain.layers] == [chain.input_bytes, 0, plane, 0, 0, 4 * 8 * 4]
    assert chain.input_bytes == 4 * 16 * 16 * 3 * 4
    assert all(plane <= layers[name].workspace_bytes < 4 * plane for name in ("one", "relu", "two", "add"))
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
    model = keras.Model(first, shared(shared(first)))
    with pytest.raises(ValueError, match="is not compiled"):
        ct.plan(model, 64, devices=2)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="calls 'shared' more than once"):
        ct.plan(model, 64, devices=2)
