"""Storage "offload" with the ways in which Keras trains: as many bits as with "keep"."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct

layers = keras.layers
SIZE, BATCH, STEPS = 32, 16, 4
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def convolution(activation="tanh"):
    return layers.Conv2D(32, 3, padding="same", activation=activation)


def plain(**how):
    inputs = keras.Input((SIZE, SIZE, 8))
    x = convolution("relu")(inputs)
    x = layers.Add()([x, layers.BatchNormalization()(convolution()(x))])
    x = convolution()(x)
    return finished(inputs, x, **how)


def shared():
    first, second = convolution("relu"), convolution()
    inputs = keras.Input((SIZE, SIZE, 8))
    x = layers.Conv2D(32, 1)(inputs)
    for _ in range(2):
        x = layers.Add()([second(first(x)), first(second(x))])
    return finished(inputs, x)


def an_output_without_loss():
    inputs = keras.Input((SIZE, SIZE, 8))
    x = convolution()(inputs)
    one, other = (layers.Dense(10)(layers.Flatten()(convolution()(x))) for _ in range(2))
    model = keras.Model(inputs, [one, other])
    model.compile(keras.optimizers.SGD(0.01), [LOSS, None], jit_compile=False)
    return model


def recurrent():
    inputs = keras.Input((SIZE, SIZE, 8))
    x = layers.Reshape((SIZE, SIZE * 32))(convolution()(convolution()(inputs)))
    x = layers.LSTM(8)(x)
    return finished(inputs, x)


def frozen():
    inputs = keras.Input((SIZE, SIZE, 8))
    x = convolution()(inputs)
    middle = convolution()
    middle.trainable = False
    return finished(inputs, convolution()(middle(x)))


def finished(inputs, x, accumulate=None, **how):
    model = keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))
    optimizer = keras.optimizers.SGD(0.01, gradient_accumulation_steps=accumulate)
    model.compile(optimizer, LOSS, jit_compile=False, **how)
    return model


WAYS = {
    "plain": plain,
    "shared layers": shared,
    "an output without loss": an_output_without_loss,
    "recurrent": recurrent,
    "frozen": frozen,
    "gradient accumulation": lambda: plain(accumulate=2),
    "several steps at once": lambda: plain(steps_per_execution=2),
}


def batch():
    random = np.random.default_rng(0)
    return random.normal(size=(BATCH, SIZE, SIZE, 8)).astype("float32"), random.integers(0, 10, BATCH)


def trained(make, storage):
    keras.utils.set_random_seed(0)
    model = make()
    ct.compress_model(model, storage=storage)
    x, y = batch()
    data = (x, (y, y)) if len(model.outputs) > 1 else (x, y)
    model.fit(tf.data.Dataset.from_tensors(data).repeat(STEPS), epochs=1, steps_per_epoch=STEPS, verbose=0)
    return model


@pytest.mark.long(but=["recurrent", "gradient accumulation", "several steps at once"])
@pytest.mark.parametrize("way", list(WAYS))
def test_training_is_bit_equal(way, tmp_path):
    storage = ct.Offload(folder=tmp_path)
    ours, theirs = trained(WAYS[way], storage), trained(WAYS[way], "keep")
    moved = storage.traffic()
    assert moved and all(site.tensors == STEPS for site in moved.values())
    for one, other in zip(ours.weights, theirs.weights):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.path)


REPLICAS = """
import sys
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_comptrain as ct
from storage.test_offload_kinds_of_training import plain, trained

def make():
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        return plain()

storage = ct.Offload(folder=sys.argv[1])
ours, theirs = trained(make, storage), trained(make, "keep")
assert storage.traffic()
for one, other in zip(ours.weights, theirs.weights):
    np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6, err_msg=one.path)
"""


@pytest.mark.long
def test_two_replicas(tmp_path):
    """In a process of their own, which has two devices."""
    command = [sys.executable, "-c", REPLICAS, str(tmp_path)]
    run = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]


def test_two_gradients_of_a_step(tmp_path):
    """What both read is moved once."""
    storage = ct.Offload(folder=tmp_path)
    x, y = map(tf.constant, batch())

    def steps(storage):
        keras.utils.set_random_seed(0)
        model = plain()
        ct.compress_model(model, storage=storage)

        @tf.function
        def step():
            with tf.GradientTape(persistent=True) as tape:
                outputs = model(x, training=True)
                losses = LOSS(y, outputs), tf.reduce_mean(outputs**2)
            for loss in losses:
                model.optimizer.apply(
                    tape.gradient(loss, model.trainable_variables), model.trainable_variables
                )

        for _ in range(STEPS):
            step()
        return model

    ours, theirs = steps(storage), steps("keep")
    moved = storage.traffic()
    assert moved and all(site.tensors == STEPS for site in moved.values())
    for one, other in zip(ours.weights, theirs.weights):
        np.testing.assert_array_equal(one.numpy(), other.numpy(), err_msg=one.path)


def test_the_profile_tells_of_several_steps(tmp_path):
    model = plain(steps_per_execution=2)
    ct.compress_model(model, storage=ct.Offload(codec=None, folder=tmp_path, inflight=1))
    found = ct.memory.transfers(model, *batch())
    assert found.steps == 2 and "moved in 2 steps" in str(found)
