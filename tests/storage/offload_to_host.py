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


class Stem(layers.Layer):
    """A convolution, and a head of its own that is made before the network goes on."""

    def __init__(self):
        super().__init__()
        self.convolution = layers.Conv2D(32, 3, padding="same", activation="relu", name="conv0")
        self.head = layers.Conv2D(32, 3, padding="same", activation="tanh", name="head")

    def call(self, x):
        x = self.convolution(x)
        return x, tf.reduce_mean(self.head(x), (1, 2))


def network(head):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((32, 32, 3))
    beside = None
    for number in range(5):
        if head and not number:
            x, beside = Stem()(x)
        else:
            x = layers.Conv2D(32, 3, padding="same", activation="relu", name=f"conv{number}")(x)
    x = layers.Dense(10)(layers.Flatten()(x))
    return keras.Model(inputs, layers.Add()([layers.Dense(10)(beside), x]) if head else x)


def trained(storage, steps, head=False):
    """(losses, sum of the magnitudes of the weights, what the traced step has of each operation of the offload, how the
    report says that tensors are held)."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(16, 32, 32, 3)).astype("float32"), random.integers(0, 10, 16)
    graphs = []
    model, optimizer = network(head), keras.optimizers.SGD(0.01)
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
    storages = {row.layer.split("/")[-2].removesuffix("_1"): row.storage for row in ct.report(model).rows}
    return losses, float(sum(abs(w).sum() for w in model.get_weights())), operations, storages


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    engine_of_step = held_tensors.engine_of_step
    runs = {"keep": trained("keep", 5)}
    held_tensors.engine_of_step = lambda backward: engine_of_step(backward)._replace(device="GPU")
    held_tensors.keep_layouts = lambda engine: None
    for name, how in json.loads(sys.argv[1]).items():
        head = how.pop("head", False)
        runs[name] = trained(ct.Offload(**how), 5, head)
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
