"""One training by several processes: each takes its part of every batch.

tf-comptrain launch -n 2 examples/distributed.py      # two workers on this machine
python examples/distributed.py                        # the same training by one process
python examples/distributed.py --stages               # its layers on two devices, four microbatches a step

Killed, or ended with Ctrl-C, the same command goes on from the last snapshot (docs/distribution.md).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from demo_data import load
from tensorflow import keras

import tf_comptrain as ct

layers = keras.layers


def build() -> keras.Model:
    """The compiled model: every worker makes it, and they agree on its weights."""
    model = keras.Sequential([keras.Input((28, 28, 1))])
    for filters in (32, 64, 128):
        model.add(layers.Conv2D(filters, 3, padding="same", use_bias=False))
        model.add(layers.BatchNormalization(momentum=0.9))
        model.add(layers.ReLU())
        model.add(layers.MaxPooling2D())
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(10))
    ct.compress_model(model)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def train_in_stages(images: Any, args: argparse.Namespace) -> None:
    """The first two blocks of layers on one device, the others on another: GPUs, or virtual CPUs."""
    if len(tf.config.list_physical_devices("GPU")) < 2:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        kind = "CPU"
    else:
        kind = "GPU"
    model = build()
    names = [layer.name for layer in model.layers]
    border = [k for k, layer in enumerate(model.layers) if isinstance(layer, layers.MaxPooling2D)][1] + 1
    stages = [
        ct.distribute.Stage(tuple(names[:border]), devices=(0,)),
        ct.distribute.Stage(tuple(names[border:]), devices=(1,)),
    ]
    ct.distribute.place(model, stages, microbatches=4, devices=[f"{kind}:0", f"{kind}:1"])
    model.fit(
        images.x,
        images.y,
        batch_size=args.batch,
        epochs=args.epochs,
        validation_data=(images.x_test, images.y_test),
        verbose=2,
    )
    print(f"devices: {len({weight.value.device for weight in model.trainable_variables})}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4000, help="to train with (%(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="images a step, over all workers (%(default)s)")
    parser.add_argument("--epochs", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("distributed_out"), help="folder (%(default)s)")
    parser.add_argument("--stages", action="store_true", help="one process, layers on two devices")
    args = parser.parse_args()

    images = load(args.out, args.images, 500, offline=True)  # NumPy arrays: nothing of TensorFlow has run
    if args.stages:
        train_in_stages(images, args)
        return
    history = ct.distribute.fit(
        build,
        images.x,
        images.y,
        batch_size=args.batch,
        epochs=args.epochs,
        snapshot_every=20,
        checkpoint_dir=args.out / "checkpoint",
        validation_data=(images.x_test, images.y_test),
        callbacks=[ct.AdaptiveErrorBound(interval=50)],
        verbose=2,
    )
    if ct.distribute.is_first_worker():
        history.model.save(args.out / "model.keras")  # stock Keras: loads without tf_comptrain
        print(f"workers: {history.model.distribute_strategy.num_replicas_in_sync}", flush=True)


if __name__ == "__main__":
    main()
