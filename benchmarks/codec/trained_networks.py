"""Ratios of plane, rans and zvc (and SZ3, zfp where installed) on the activations of CIFAR-10 networks as they train.

`train` trains a residual network and a VGG, with flips and shifts and a cosine schedule, and after some of the epochs
writes activations of early, middle and late layers (images held out, batch statistics), in the format of
`dump_activations.py`. `table` compresses what is there and prints Markdown:

    python benchmarks/codec/trained_networks.py train cifar10_jpeg.npz OUT --images 20000 --epochs 12
    python benchmarks/codec/trained_networks.py table OUT
"""

import argparse
import collections
import json
import pathlib

import keras
import numpy as np
import tensorflow as tf
from contenders import contenders
from dump_activations import load_images, read_activation, write_activation

BOUND = 0.1  # standard deviations
COLUMNS = {
    "plane": "plane",
    "plane mid-rise": "plane mid-rise",
    "rans": "rans",
    "rans mid-rise": "rans mid-rise",
    "zvc": "zvc",
    "SZ3 Lorenzo": "sz3 lorenzo",
    "zfp": "zfp",
}


def residual(shape, blocks=3):
    """The CIFAR residual network of He et al. (2016): 6 * blocks + 2 layers."""
    layers = keras.layers

    def convolution(x, filters, name, size=3, strides=1):
        x = layers.Conv2D(
            filters, size, strides=strides, padding="same", use_bias=False, name=f"{name}_conv"
        )(x)
        return layers.BatchNormalization(momentum=0.9, name=f"{name}_bn")(x)

    x = inputs = keras.Input(shape)
    x = layers.ReLU(name="first_relu")(convolution(x, 16, "first"))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(blocks):
            name = f"s{stage}b{block}"
            strides = 2 if stage > 0 and block == 0 else 1
            shortcut = convolution(x, filters, f"{name}_shortcut", 1, strides) if strides > 1 else x
            x = layers.ReLU(name=f"{name}_inner_relu")(
                convolution(x, filters, f"{name}_inner", strides=strides)
            )
            x = layers.Add(name=f"{name}_add")([convolution(x, filters, f"{name}_outer"), shortcut])
            x = layers.ReLU(name=f"{name}_outer_relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    wanted = ["first", "s0b0_inner", f"s0b{blocks - 1}_outer", "s1b1_inner", "s1b1_outer"]
    wanted += ["s2b1_inner", f"s2b{blocks - 1}_outer"]
    return keras.Model(inputs, layers.Dense(10)(x), name=f"resnet{6 * blocks + 2}"), wanted


def vgg(shape, widths=(32, 64, 128)):
    """VGG's plan with batch normalization, three stages of two and three convolutions."""
    layers = keras.layers
    x = inputs = keras.Input(shape)
    names = []
    for stage, width in enumerate(widths):
        for block in range(3 if stage == len(widths) - 1 else 2):
            name = f"s{stage}b{block}"
            names.append(name)
            x = layers.Conv2D(width, 3, padding="same", use_bias=False, name=f"{name}_conv")(x)
            x = layers.ReLU(name=f"{name}_relu")(
                layers.BatchNormalization(momentum=0.9, name=f"{name}_bn")(x)
            )
        x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.3)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(inputs, layers.Dense(10)(x), name="vgg7"), names


def augmented(images, labels, batch, seed):
    """Random flips, and shifts of up to 4 pixels."""

    def change(x, y):
        x = tf.pad(tf.image.random_flip_left_right(x), [[4, 4], [4, 4], [0, 0]])
        return tf.image.random_crop(x, (32, 32, 3)), y

    data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=seed)
    return data.map(change).batch(batch, drop_remainder=True).prefetch(2)


def train(args):
    keras.utils.set_random_seed(args.seed)
    images, labels, held_out = load_images(args.data, args.images)
    data = augmented(images, labels, 128, args.seed)
    for build, rate in ((residual, 0.2), (vgg, 0.05)):
        model, wanted = build(images.shape[1:])
        steps = args.epochs * len(data)
        schedule = keras.optimizers.schedules.CosineDecay(
            0.0, steps, warmup_target=rate, warmup_steps=steps // 10
        )
        model.compile(
            optimizer=keras.optimizers.SGD(schedule, momentum=0.9, weight_decay=5e-4),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        # What batch normalization reads, and what ReLU gives.
        outputs = {f"{name}_{kind}": f"{name}_{kind}" for name in wanted for kind in ("conv", "relu")}
        taps = keras.Model(model.inputs, [model.get_layer(name).output for name in outputs])
        for epoch in range(1, args.epochs + 1):
            history = model.fit(data, verbose=2)
            if epoch not in args.at and epoch != args.epochs:
                continue
            folder = args.out / f"{model.name}-{epoch:03}"
            folder.mkdir(parents=True, exist_ok=True)
            accuracy = history.history["accuracy"][-1]
            notes = {"network": model.name, "epoch": epoch, "images": len(images), "accuracy": accuracy}
            (folder / "notes.json").write_text(json.dumps(notes))
            for name, value in zip(outputs, taps(held_out[: args.dump_batch], training=True)):
                write_activation(folder / f"{name}.bin", np.asarray(value))


def ratio(x, contender):
    """Uncompressed over compressed size at the bound."""
    calls = contender.make(x, BOUND * float(np.std(x, dtype=np.float64)), 1)
    return x.nbytes / calls.size(calls.compress())


def table(args):
    """One row a tensor; ratios after the epochs, from first to last."""
    known = contenders()
    columns = {title: known[name] for title, name in COLUMNS.items() if known[name].installed}
    networks = collections.defaultdict(list)
    for folder in sorted(path.parent for path in args.out.glob("*/notes.json")):
        notes = json.loads((folder / "notes.json").read_text())
        networks[notes["network"]].append((folder, notes))
    for name, written in networks.items():
        epochs = ", ".join(f"{notes['epoch']} ({notes['accuracy']:.0%})" for _, notes in written)
        print(f"\n{name}, {written[0][1]['images']:,} images; epochs (training accuracy): {epochs}\n")
        print(
            "| " + " | ".join(["tensor", "not zero", *columns]) + " |\n" + "|---" * (len(columns) + 2) + "|"
        )
        for file in sorted(path.name for path in written[0][0].glob("*.bin")):
            arrays = [read_activation(folder / file) for folder, _ in written]
            shape = "x".join(map(str, arrays[0].shape[1:]))
            row = [f"{file[: -len('.bin')]} {shape}", " ".join(f"{np.mean(x != 0):.2f}" for x in arrays)]
            for title, contender in columns.items():
                of_relu = title in ("A mid-rise", "B mid-rise", "C")
                measured = "relu" in file or not of_relu
                row.append(" ".join(f"{ratio(x, contender):.1f}" for x in arrays) if measured else "")
            print("| " + " | ".join(row) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    training = commands.add_parser("train")
    training.set_defaults(run=train)
    training.add_argument("data", help="cifar10_jpeg.npz")
    training.add_argument("out", type=pathlib.Path)
    training.add_argument("--images", type=int, default=50000)
    training.add_argument("--epochs", type=int, default=30)
    training.add_argument(
        "--at", type=int, nargs="*", default=[1, 3, 10], help="epochs to write, and the last"
    )
    training.add_argument("--dump-batch", type=int, default=256)
    training.add_argument("--seed", type=int, default=1)
    printing = commands.add_parser("table")
    printing.set_defaults(run=table)
    printing.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
