"""python staged.py DEVICES PLACE/WAY...: losses and weights of one device and of a model placed on several, as JSON."""

import json
import sys

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from training_worker import BATCH, EPOCHS, data

import tf_comptrain as ct
from tf_comptrain.distribute import Stage

FRONT, BACK = ("first", "second"), ("block", "join", "flat", "out")


def network(way):
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, activation="relu", name="first")(image)
    x = layers.Conv2D(8, 3, padding="same", activation="relu", name="second")(x)
    convolutions = [layers.Conv2D(8, 3, padding="same", activation="relu") for _ in range(2)]
    block = keras.Sequential([keras.Input((6, 6, 8)), *convolutions], name="block")
    y = ct.Recompute(block, name="block")(x) if way == "recompute" else block(x)
    x = layers.Add(name="join")([x, y]) * 0.5
    x = layers.Flatten(name="flat")(x)
    model = keras.Model(image, layers.Dense(4, activation="softmax", name="out")(x))
    ct.compress_model(model, **({"storage": "keep"} if way == "keep" else {}))
    return model


def trained(way, fit="fit", stages=(), microbatches=1, codec=None):
    model = network(way)
    if stages:
        ct.distribute.place(model, stages, microbatches, codec=codec)
    model.compile(keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy", metrics=["accuracy"])
    train = {"fit": model.fit, "ct.fit": lambda *given, **named: ct.fit(model, *given, **named)}[fit]
    history = train(*data(), batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0).history
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    return {"loss": history["loss"], "accuracy": history["accuracy"], "weights": weights.tolist()}


def border_bytes(way):
    """What the backward pass of the second stage reads of the forward pass on the first device."""
    model = network(way)
    ct.distribute.place(model, [Stage(FRONT, (0,)), Stage(BACK, (1,))])
    model.compile("sgd", "sparse_categorical_crossentropy")

    @tf.function(autograph=False)
    def step(x, y):
        graph = tf.compat.v1.get_default_graph()
        model.train_step((x, y))
        operations = graph.get_operations()
        start = next(k for k, op in enumerate(operations) if op.name.startswith("gradient_tape"))
        forward = {op.name for op in operations[:start] if op.device.endswith("CPU:0")}
        readers = [op for op in operations[start:] if op.device.endswith("CPU:1")]
        read = {t.ref(): t for op in readers for t in op.inputs if t.op.name in forward}
        streams = [t for op in operations if op.type == "Comptrain>Compress" for t in op.outputs[1:2]]
        streams = [t for t in streams if any(reader in readers for reader in t.consumers())]
        sent = {t.ref(): t for t in (*read.values(), *streams) if t.op.device.endswith("CPU:0")}
        return [tf.size(t) * t.dtype.size for t in sent.values()]

    return [int(size) for size in step(*map(tf.constant, data(16)))]


def updates(*stages):
    """How many of Adam's squares are on each device, one for a weight, and who reads all gradients on one device."""
    model = network("keep")
    ct.distribute.place(model, stages, 2)
    model.compile("adam", "sparse_categorical_crossentropy")
    graphs = []

    @tf.function(autograph=False)
    def step(x, y):
        graphs.append(tf.compat.v1.get_default_graph())
        return model.train_step((x, y))

    step.get_concrete_function(*map(tf.constant, data(16)))
    operations = graphs[-1].get_operations()
    squares = [op.device[-5:] for op in operations if op.type == "Square" and op.name.startswith("adam")]
    joined = [tensor for op in operations if op.type == "IdentityN" for tensor in op.outputs]
    readers = [reader.name for tensor in joined for reader in tensor.consumers()]
    held = {"CPU:0": 0, "CPU:1": 0}
    for weight in model.weights:
        held[weight.value.device[-5:]] += weight.value.shape.num_elements()
    return {**{device: squares.count(device) for device in held}, "readers": readers, "held": held}


def main():
    count = int(sys.argv[1])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
    half = tuple(range(count // 2)), tuple(range(count // 2, count))
    if count == 2:
        stages = [Stage(FRONT, (0,)), Stage(BACK, (1,))]
        places = {
            "stages": (stages, 1, "zvc"),
            "microbatches": (stages, 4),
            "data": ([Stage(FRONT + BACK, (0, 1))], 1),
        }
    else:
        places = {
            "hybrid": ([Stage(FRONT, half[0]), Stage(BACK, half[1])], 2),
            "rows": ([Stage(FRONT, (0, 1, 2), "rows"), Stage(BACK, (3,))], 1),
            "channels": ([Stage(FRONT, half[0], "channels"), Stage(BACK, half[1])], 1),
        }
    runs = {}
    for asked in sys.argv[2:]:
        name, _, way = asked.partition("/")
        runs[asked] = trained(way, "ct.fit" if name == "hybrid" else "fit", *places[name])
    sent = {way: border_bytes(way) for way in ("keep", "stream")} if count == 2 else {}
    updated = {
        "stages": updates(Stage(FRONT, (0,)), Stage(BACK, (1,))), "data": updates(Stage((*FRONT, *BACK), (0, 1)))
    }  # fmt: skip
    print(json.dumps({"one": trained("keep"), "border_bytes": sent, "updates": updated, **runs}))


if __name__ == "__main__":
    main()
