"""Stages on two devices: what the backward pass makes runs where the forward pass did."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

STAGES = """
    import json
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras
    from tensorflow.keras import layers
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import tf_comptrain as ct

    class Stage(layers.Layer):
        def __init__(self, device, inner, **kwargs):
            super().__init__(**kwargs)
            self.device, self.inner = device, inner

        def build(self, shape):
            with tf.device(self.device):
                self.inner.build(shape)

        def compute_output_shape(self, shape):
            return self.inner.compute_output_shape(shape)

        def call(self, x, training=None):
            with tf.device(self.device):
                return self.inner(x, training=training)

    def block(prefix):
        convolution = layers.Conv2D(8, 3, padding="same", name=f"{prefix}_conv")
        parts = [convolution, layers.BatchNormalization(name=f"{prefix}_norm"), layers.ReLU(name=f"{prefix}_relu")]
        return keras.Sequential(parts, name=prefix)

    def network(devices, storage):
        keras.utils.set_random_seed(0)
        parts = [Stage(device, block(f"part{k}"), name=f"stage{k}") for k, device in enumerate(devices)]
        model = keras.Sequential([keras.Input((16, 16, 3)), *parts, layers.Flatten(), layers.Dense(4)])
        ct.compress_model(model, storage=storage)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
        return model

    random = np.random.default_rng(0)
    images, labels = random.random((32, 16, 16, 3), np.float32), random.integers(0, 4, 32)

    def trained(devices, storage):
        model = network(devices, storage)
        return model.fit(images, labels, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]

    def placed():
        model, graphs = network(["CPU:0", "CPU:1"], None), []

        @tf.function
        def step(x, y):
            graphs.append(tf.compat.v1.get_default_graph())
            return model.train_step((x, y))

        step.get_concrete_function(tf.constant(images[:8]), tf.constant(labels[:8]))
        return [(op.type, op.name, op.device[-5:]) for op in graphs[-1].get_operations()]

    found = {"placed": placed()}
    for storage in (None, "rebuild"):
        found[str(storage)] = [trained(["CPU:0", other], storage) for other in ("CPU:0", "CPU:1")]
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found():
    root = Path(__file__).resolve().parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(STAGES)],
        env=dict(os.environ, PYTHONPATH=str(root), TF_CPP_MIN_LOG_LEVEL="2"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["Conv2DBackpropFilter", "BiasAddGrad", "Comptrain>BatchNormGrad"])
def test_gradients_of_weights_are_where_the_weights_are(found, kind):
    devices = {device for op, _, device in found["placed"] if op == kind}
    assert {"CPU:0", "CPU:1"} <= devices


def test_the_backward_pass_of_a_stage_is_on_its_device(found):
    """By the names that TensorFlow gives what belongs to a layer."""
    named = [(op, name, device) for op, name, device in found["placed"] if "gradient_tape/" in name]
    for op in ("Conv2DBackpropFilter", "Conv2DBackpropInput", "ReluGrad"):
        for kind, name, device in named:
            if kind == op:
                assert device == ("CPU:1" if "stage1" in name else "CPU:0"), (op, name, device)


def test_streams_are_made_where_the_tensor_is_and_read_where_its_reader_is(found):
    streams = [device for op, _, device in found["placed"] if op == "Comptrain>Compress"]
    restored = [device for op, _, device in found["placed"] if op == "Comptrain>Decompress"]
    assert (
        streams.count("CPU:0") == 2 and streams.count("CPU:1") >= 1
    )  # the first stage's output is of the first
    assert "CPU:1" in restored and "" not in restored


@pytest.mark.parametrize("storage", ["None", "rebuild"])
def test_losses_are_those_of_one_device(found, storage):
    one, two = found[storage]
    np.testing.assert_allclose(two, one, rtol=1e-5)
