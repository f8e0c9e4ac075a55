"""What dither does at the fixed rate of XLA's streams: errors of weight gradients by bits.

    python benchmarks/accuracy/fixed_rate.py --cifar CIFAR10.npz

A ResNet-20 trains for some epochs. Then the input of each of its convolutions is quantized with a scale for every 32
values, as `cc/codec/fixed_rate` does with dither, and to the nearest, and the kernel's gradient of one batch is
computed from both. With dither a value needs half a step at either end of the codes for itself; without, zero needs a
code where values have signs. Medians over the convolutions.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import data
import keras
import networks
import numpy as np
import tensorflow as tf

_GROUP = 32
_SMALLEST_STEP = (
    0.04 / 256
)  # in standard deviations: of a bound of 0.02, which rounds a scale but decides none


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cifar", required=True, help="CIFAR-10 as .npz; see data.load")
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument(
        "--epochs", type=int, nargs="+", default=[1, 4], help="of training before each measurement"
    )
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    images = data.load(args.cifar, args.images, 16)
    keras.utils.set_random_seed(0)
    model = networks.resnet(20, images.x.shape[1:])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
    print("| epochs | bits | dither | gradient error | mean square error / variance | mean error / sigma |")
    print("|---|---|---|---|---|---|")
    done = 0
    for epochs in args.epochs:
        model.fit(images.x, images.y, args.batch, epochs, verbose=0)
        done += epochs
        convolutions = inputs_and_gradients(model, images.x[: args.batch], images.y[: args.batch])
        for bits in (2, 3, 4, 5):
            for dither in (False, True):
                found = np.median([errors(*one, bits, dither) for one in convolutions], axis=0)
                print(
                    f"| {done} | {bits} | {'yes' if dither else 'no'} |"
                    + "".join(f" {v:.2g} |" for v in found)
                )


def inputs_and_gradients(model: keras.Model, x: np.ndarray, y: np.ndarray) -> list[tuple]:
    """(convolution, its input, the gradient of its output) of one batch; without the first, which reads the images."""
    convolutions = [layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D)][1:]
    inside = keras.Model(
        model.inputs, [*(c.input for c in convolutions), *(c.output for c in convolutions), model.output]
    )
    with tf.GradientTape() as tape:
        *values, predicted = inside(x, training=True)
        loss = model.loss(y, predicted)
    outputs = values[len(convolutions) :]
    return list(zip(convolutions, (v.numpy() for v in values), tape.gradient(loss, outputs)))


def errors(layer: keras.layers.Conv2D, x: np.ndarray, dy: tf.Tensor, bits: int, dither: bool) -> tuple:
    """Of the kernel's gradient / its norm; mean square of the values / their variance; their mean / sigma."""

    def gradient(values: np.ndarray) -> np.ndarray:
        return tf.raw_ops.Conv2DBackpropFilter(
            input=values,
            filter_sizes=layer.kernel.shape,
            out_backprop=dy,
            strides=[1, *layer.strides, 1],
            padding=layer.padding.upper(),
        ).numpy()

    exact, restored = gradient(x), quantized(x, bits, dither)
    off = np.linalg.norm(gradient(restored) - exact) / np.linalg.norm(exact)
    return off, np.mean((restored - x) ** 2) / x.var(), abs(np.mean(restored - x)) / x.std()


def quantized(x: np.ndarray, bits: int, dither: bool) -> np.ndarray:
    """The values that come back from a stream with so many bits a value, of a tensor of a multiple of 32 elements."""
    values = x.reshape(-1, _GROUP)
    is_relu = (
        values.min() >= 0
    )  # such streams keep the mask: code 0 is zero, the others are middles of intervals
    reach = 2**bits - 1 - dither if is_relu else 2 ** (bits - 1) - 0.5
    smallest = _SMALLEST_STEP * x.std()
    largest = np.abs(values).max(axis=1, keepdims=True)
    scale = 2.0 ** (np.ceil(4 * np.log2(np.maximum(largest / (smallest * reach), 1))) / 4)
    t = values / (scale * smallest)
    shift = np.random.default_rng(bits).random(t.shape, np.float32) - 0.5 if dither else 0.0
    if is_relu and dither:
        codes = np.clip(np.rint(t + shift), 0, 2**bits - 2)
    elif is_relu:
        codes = np.clip(np.floor(t), 0, 2**bits - 2) + 0.5
    elif dither:
        codes = np.clip(np.floor(t + shift), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) + 0.5
    else:
        codes = np.clip(np.rint(t), 1 - 2 ** (bits - 1), 2 ** (bits - 1) - 1)
    zeros_stay = (values == 0) & (is_relu or not dither)
    restored = np.where(zeros_stay, 0, (codes - shift) * scale * smallest)
    return restored.reshape(x.shape).astype(x.dtype)


if __name__ == "__main__":
    main()
