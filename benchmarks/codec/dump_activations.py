"""Trains a small CNN and writes its activations for `codec_bench`.

Each file `<layer>.bin` is one line of text, the shape, then the values as
little-endian float32. Convolution, batch-normalisation and ReLU outputs of
every block are written, from images the network has not been trained on.

    python benchmarks/codec/dump_activations.py fashion_mnist.npz out_dir --steps 400
"""

import argparse
import pathlib

import keras
import numpy as np
import tensorflow as tf


def load_images(path, limit=20000):
    """Returns at most `limit` train images and their labels, and test images, scaled to [0, 1]."""
    data = np.load(path, allow_pickle=False)
    if "x_train" in data:
        train, labels, test = data["x_train"][:limit], data["y_train"][:limit], data["x_test"]
        pad = ((0, 0), (2, 2), (2, 2))
        train, test = np.pad(train, pad)[..., None], np.pad(test, pad)[..., None]
    else:
        train = _decode_jpegs(data, "train", limit)
        test = _decode_jpegs(data, "test", 2000)
        labels = data["train_label"][: len(train)]
    return (
        train.astype(np.float32) / 255,
        labels.astype(np.int64).ravel(),
        test.astype(np.float32) / 255,
    )


def _decode_jpegs(data, split, limit):
    blob, offset = data[f"{split}_jpeg"].tobytes(), data[f"{split}_offset"]
    count = min(limit, len(offset) - 1)
    return np.stack(
        [tf.io.decode_jpeg(blob[offset[i] : offset[i + 1]], channels=3).numpy() for i in range(count)]
    )


def write_activation(path, value):
    """One line of text, the shape; then the values as little-endian float32."""
    value = np.ascontiguousarray(value, dtype="<f4")
    with open(path, "wb") as f:
        f.write((" ".join(map(str, value.shape)) + "\n").encode())
        f.write(value.tobytes())


def read_activation(path):
    """What `write_activation` wrote."""
    with open(path, "rb") as f:
        shape = tuple(map(int, f.readline().split()))
        return np.frombuffer(f.read(), "<f4").reshape(shape)


def build_model(shape, widths):
    """A plain conv-BN-ReLU network, two blocks a stage, halved between stages."""
    inputs = x = keras.Input(shape)
    for stage, width in enumerate(widths):
        for block in range(2):
            name = f"s{stage}b{block}"
            x = keras.layers.Conv2D(width, 3, padding="same", use_bias=False, name=f"{name}_conv")(x)
            x = keras.layers.BatchNormalization(name=f"{name}_bn")(x)
            x = keras.layers.ReLU(name=f"{name}_relu")(x)
        x = keras.layers.MaxPooling2D(name=f"s{stage}_pool")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", help="fashion_mnist.npz or cifar10_jpeg.npz")
    parser.add_argument("out", type=pathlib.Path, help="folder for the .bin files")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dump-batch", type=int, default=256)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    keras.utils.set_random_seed(args.seed)
    train, labels, test = load_images(args.data)
    model = build_model(train.shape[1:], args.widths)
    model.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    count = min(len(train), args.steps * args.batch)
    epochs = -(-args.steps * args.batch // count)
    model.fit(train[:count], labels[:count], batch_size=args.batch, epochs=epochs, verbose=2)

    wanted = [layer for layer in model.layers if layer.name.endswith(("_conv", "_bn", "_relu"))]
    taps = keras.Model(model.inputs, [layer.output for layer in wanted])
    args.out.mkdir(parents=True, exist_ok=True)
    # training=True: batch statistics, as in the step that would compress them.
    for layer, value in zip(wanted, taps(test[: args.dump_batch], training=True)):
        write_activation(args.out / f"{layer.name}.bin", value)
        print(layer.name, value.shape, f"zeros {np.mean(np.asarray(value) == 0):.3f}")


if __name__ == "__main__":
    main()
