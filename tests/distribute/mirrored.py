"""python mirrored.py DEVICES WAYS: losses and weights of one device and of several, by both `fit`, as JSON.

WAYS: of "keep", "stream" and "recompute" those in which several train.
"""

import json
import sys

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers
from training_worker import BATCH, EPOCHS, data

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation


def layers_alone():
    x = inputs = keras.Input((8, 8, 3))
    for _ in range(2):
        x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Dense(4, activation="softmax")(layers.Flatten()(x)))


def network(way):
    keras.utils.set_random_seed(0)
    block = [layers.Conv2D(8, 3, padding="same", activation="relu"), layers.Conv2D(8, 3, activation="relu")]
    if way == "recompute":
        block = [ct.Recompute(keras.Sequential([keras.Input((6, 6, 8)), *block]))]
    first = layers.Conv2D(8, 3, activation="relu")
    last = [layers.Flatten(), layers.Dense(4, activation="softmax")]
    model = keras.Sequential([keras.Input((8, 8, 3)), first, *block, *last])
    ct.compress_model(model, **({"storage": "keep"} if way == "keep" else {}))
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "sparse_categorical_crossentropy")
    return model


def trained(way, fit, strategy):
    with strategy.scope():
        model = network(way)
    if fit == "fit":
        batches = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH)
        history = model.fit(batches, epochs=EPOCHS, shuffle=False, verbose=0)
    else:
        history = ct.fit(model, *data(), batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0)
    weights = np.concatenate([np.ravel(weight) for weight in model.get_weights()])
    return {"loss": history.history["loss"], "weights": weights.tolist()}


def bounds(strategy):
    """Of each replica, after a step under an absolute bound: what its sites have as that."""
    with strategy.scope():
        model = layers_alone()
        ct.compress_model(model, error_bound=1e-6)
        model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(*data(), batch_size=BATCH, steps_per_epoch=1, verbose=0)
    table = instrumentation(model).held.table
    return [part.numpy()[: table.used, 0].tolist() for part in table.variable.values]


def main():
    devices = int(sys.argv[1])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
    one = tf.distribute.get_strategy()
    refused = ""
    several = tf.distribute.MirroredStrategy([f"CPU:{k}" for k in range(devices)])
    runs = {way: {fit: trained(way, fit, several) for fit in ("fit", "ct.fit")} for way in sys.argv[2:]}
    runs["one"] = trained("keep", "ct.fit", one)
    with several.scope():
        model = network("keep")
        model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=True)
    try:
        ct.fit(model, *data(), batch_size=BATCH)
    except ValueError as error:
        refused = str(error)
    runs["xla"] = refused
    runs["bounds"] = bounds(several)
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
