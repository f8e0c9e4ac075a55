"""Two virtual devices of the processor: one trains, the other stands for the host beside it. Prints JSON."""

import json
import sys

import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.graph import held_tensors

layers = keras.layers


def network():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((32, 32, 3))
    x = inputs
    for number in range(5):
        x = layers.Conv2D(32, 3, padding="same", activation="relu", name=f"conv{number}")(x)
    return keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))


def trained(storage, steps):
    """(losses, sum of the magnitudes of the weights, what the traced step has of each operation of the offload)."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(16, 32, 32, 3)).astype("float32"), random.integers(0, 10, 16)
    graphs = []
    model, optimizer = network(), keras.optimizers.SGD(0.01)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ct.compress_model(model, storage=storage)

    @tf.function
    def step(x, y):
        with tf.device("CPU:1"):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    with _keras.on_gradients(lambda backward: graphs.append(backward.graph)):
        losses = [float(step(x, y)) for _ in range(steps)]
    operations = {
        op.name: {
            "type": op.type.rpartition(">")[2],
            "device": op.device.rpartition(":")[2],
            "reads": [tensor.op.name for tensor in op.inputs],
            "waits": [before.name for before in op.control_inputs],
        }
        for op in graphs[-1].get_operations()
    }
    return losses, float(sum(abs(w).sum() for w in model.get_weights())), operations


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    engine_of_step = held_tensors.engine_of_step
    runs = {"keep": trained("keep", 5)}
    held_tensors.engine_of_step = lambda backward: engine_of_step(backward)._replace(device="GPU")
    held_tensors.keep_layouts = lambda engine: None
    for name, how in json.loads(sys.argv[1]).items():
        runs[name] = trained(ct.Offload(**how), 5)
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
