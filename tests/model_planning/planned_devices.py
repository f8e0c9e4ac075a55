"""Plans over two virtual devices, applied and trained beside one device. Prints JSON, given "smaller" of more."""

import json
import sys

import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.model_planning.model_device_plan import ModelDevicePlan

layers = keras.layers
BATCH = 16


def network():
    keras.utils.set_random_seed(0)
    x = image = keras.Input((32, 32, 3))
    for number in range(6):
        x = layers.Conv2D(32, 3, padding="same", activation="relu", name=f"conv{number}")(x)
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    model = keras.Model(image, layers.Dense(4, name="out")(x * 0.5))
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def trained(model):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(48, 32, 32, 3)).astype("float32"), random.integers(0, 4, 48)
    history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    return {"loss": history, "weights": [float(np.abs(w).sum()) for w in model.get_weights()]}


def planned(memory):
    model = network()
    plan = ct.plan(model, BATCH, memory=memory, devices=2, budget_s=0.5)
    again = ModelDevicePlan.from_json(plan.to_json())
    report = again.apply(model)
    found = {
        "stages": [stage.layers for stage in plan.stages], "devices": [stage.devices for stage in plan.stages],
        "storage": dict(plan.storage), "microbatches": plan.microbatches, "peak": plan.peak_bytes,
        **trained(model), "held": sorted({row.storage for row in report.rows}),
    }  # fmt: skip
    ct.distribute.unplace(model)
    return found


def too_small():
    model = network()
    plan = ct.plan(model, BATCH, memory="100kB", devices=2, budget_s=0.5)
    try:
        plan.apply(model)
    except ValueError as error:
        return str(error)


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    kept = planned("1GB")
    runs = {"one": trained(network()), "kept": kept}
    if len(sys.argv) > 1:
        runs.update({"held": planned(int(0.4 * kept["peak"])), "too small": too_small()})
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
