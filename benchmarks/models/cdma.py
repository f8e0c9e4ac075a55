"""How small the activations of cDMA's networks get while they train, layer by layer: bytes that an offload would move.

    python benchmarks/models/cdma.py --data CIFAR10.npz [--nets AlexNet NiN] [--steps 100] [--out cdma.jsonl]
    python benchmarks/models/cdma.py --report          # the tables, from the results

The networks are those of cDMA (Rhu et al., HPCA 2018) at their own image sizes, trained on images that are enlarged to
those. At the start, after a quarter of the steps and at the end the outputs of all rectified layers are encoded:

| codec      | what                                                                                             |
|------------|--------------------------------------------------------------------------------------------------|
| zvc        | this package's: a bit a value, and the values that are not zero                                   |
| rle        | a bit a token: a value, or a byte that counts zeros in a row; channels first, as cDMA has it best   |
| deflate    | zlib's, level 6, channels first                                                                   |
| plane      | this package's, within 0.2 standard deviations of the tensor                                      |
| rans       | likewise                                                                                          |

Every network's every measurement is a line of the file, and is not made again; one that was stopped trains anew from
its seed and goes on there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from tf_comptrain import codecs

layers = keras.layers
CLASSES = 10
_SIGMAS = 0.2
_MOMENTS = (0.0, 0.25, 1.0)  # of the training
_ENCODED = 2  # images
_DTYPES = ("float32", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, help="CIFAR-10 or another npz of images")
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("cdma.jsonl"))
    parser.add_argument("--report", action="store_true", help="print the tables of the results alone")
    options = parser.parse_args()
    if not options.report:
        if options.data is None:
            parser.error("--data is missing: an npz of images to train on")
        for name in options.nets:
            measure(name, options)
    for table in (by_codec, by_moment):
        print(*table(written(options)), sep="\n", end="\n\n")


def written(options: argparse.Namespace) -> list[dict]:
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    found = [json.loads(line) for line in lines]
    return [entry for entry in found if (entry["steps"], entry["batch"]) == (options.steps, options.batch)]


# --- Measuring --------------------------------------------------------------


def measure(name: str, options: argparse.Namespace) -> None:
    """Trains a network, and adds the lines that the file has not."""
    done = {(entry["name"], entry["step"]) for entry in written(options)}
    moments = [round(moment * options.steps) for moment in _MOMENTS]
    missing = [step for step in moments if (name, step) not in done]
    if not missing:
        return
    keras.utils.set_random_seed(0)
    pixels, network = NETS[name]
    inputs = keras.Input((pixels, pixels, 3))
    model = keras.Model(inputs, layers.Dense(CLASSES)(network(inputs)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss)
    rectified = [
        layer for layer in model.layers if getattr(layer, "activation", None) is keras.activations.relu
    ]
    inside = keras.Model(inputs, [layer.output for layer in rectified])
    losses: list[float] = []
    data = batches(options.data, options.batch, pixels)
    for step in range(max(missing) + 1):
        x, y = next(data)
        if step in missing:
            found = [
                encoded(layer.name, values)
                for layer, values in zip(rectified, inside(x[:_ENCODED], training=True))
            ]
            entry = {
                "name": name,
                "step": step,
                "steps": options.steps,
                "batch": options.batch,
                "losses": losses,
            }
            with options.out.open("a") as file:
                file.write(json.dumps({**entry, "layers": found}) + "\n")
            print(f"{name}, step {step} of {options.steps}", flush=True)
        losses.append(float(model.train_on_batch(x, y)))


def encoded(layer: str, x: tf.Tensor) -> dict:
    """Of one tensor: bytes plain and by every codec, for each type."""
    found: dict[str, Any] = {"layer": layer, "elements": int(tf.size(x))}
    found["density"] = int(tf.math.count_nonzero(x)) / found["elements"]
    for dtype in _DTYPES:
        values = tf.cast(x, dtype)
        sizes = {name: size(values) for name, size in CODECS.items()}
        found[dtype] = {"plain": found["elements"] * values.dtype.size, **sizes}
    return found


def _ours(name: str) -> Callable[[tf.Tensor], int]:
    def size(x: tf.Tensor) -> int:
        bound = _SIGMAS * float(tf.math.reduce_std(tf.cast(x, tf.float32)))
        state = tf.zeros(len(codecs.State._fields))
        return int(tf.size(codecs.get(name).compress(x, state, max(bound, 1e-30), mid_rise=False)[1]))

    return size


def _channels_first(x: tf.Tensor) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x.numpy(), -1, 1)) if x.shape.rank > 2 else x.numpy()


def _run_lengths(x: tf.Tensor) -> int:
    zero = _channels_first(x).reshape(-1) == 0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], zero, [False]])))
    runs = edges[1::2] - edges[::2]
    counts = int(np.sum(-(-runs // 256)))
    values = int(zero.size - zero.sum())
    return counts + x.dtype.size * values + -(-(counts + values) // 8)


def _deflated(x: tf.Tensor) -> int:
    return len(zlib.compress(_channels_first(x).tobytes(), 6))


CODECS: dict[str, Callable[[tf.Tensor], int]] = {
    "zvc": _ours("zvc"),
    "rle": _run_lengths,
    "deflate": _deflated,
    "plane": _ours("plane"),
    "rans": _ours("rans"),
}


# --- Networks and images ----------------------------------------------------


def convolution(x: Any, filters: int, size: int = 3, strides: int = 1, padding: str = "same") -> Any:
    return layers.Conv2D(filters, size, strides, padding, activation="relu", kernel_initializer="he_normal")(
        x
    )


def pool(x: Any) -> Any:
    return layers.MaxPooling2D(3, 2, padding="same")(x)


def dense(x: Any, *units: int) -> Any:
    x = layers.Flatten()(x)
    for count in units:
        x = layers.Dense(count, activation="relu", kernel_initializer="he_normal")(x)
    return x


def alexnet(x: Any, last: tuple[int, ...] = (384, 384, 256)) -> Any:
    x = pool(convolution(x, 96, 11, 4))
    x = pool(convolution(x, 256, 5))
    for filters in last:
        x = convolution(x, filters)
    return dense(pool(x), 1024, 1024)


def overfeat(x: Any) -> Any:
    return alexnet(x, (512, 1024, 1024))


def nin(x: Any) -> Any:
    for filters, size, strides in ((96, 11, 4), (256, 5, 1), (384, 3, 1)):
        x = convolution(x, filters, size, strides)
        x = convolution(convolution(x, filters, 1), filters, 1)
        x = pool(x)
    return layers.GlobalAveragePooling2D()(convolution(x, 512))


def vgg16(x: Any) -> Any:
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            x = convolution(x, filters)
        x = layers.MaxPooling2D()(x)
    return dense(x, 1024, 1024)


def squeezenet(x: Any) -> Any:
    x = pool(convolution(x, 96, 7, 2))
    for place, squeeze in enumerate((16, 16, 32, 32, 48, 48, 64, 64)):
        x = convolution(x, squeeze, 1)
        x = layers.Concatenate()([convolution(x, 4 * squeeze, 1), convolution(x, 4 * squeeze)])
        x = pool(x) if place in (2, 6) else x
    return layers.GlobalAveragePooling2D()(convolution(x, 512, 1))


def googlenet(x: Any) -> Any:
    x = pool(convolution(x, 64, 7, 2))
    x = pool(convolution(convolution(x, 64, 1), 192))
    plan = ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (), (192, 96, 208, 16, 48, 64))
    plan += ((160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64))
    plan += ((256, 160, 320, 32, 128, 128), (), (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128))
    for widths in plan:
        if not widths:
            x = pool(x)
            continue
        one, before3, three, before5, five, pooled = widths
        parts = [convolution(x, one, 1), convolution(convolution(x, before3, 1), three)]
        parts.append(convolution(convolution(x, before5, 1), five, 5))
        parts.append(convolution(layers.MaxPooling2D(3, 1, padding="same")(x), pooled, 1))
        x = layers.Concatenate()(parts)
    return layers.GlobalAveragePooling2D()(x)


# Pixels of an image, and the network.
NETS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "AlexNet": (227, alexnet),
    "OverFeat": (231, overfeat),
    "NiN": (227, nin),
    "VGG-16": (224, vgg16),
    "SqueezeNet": (227, squeezenet),
    "GoogLeNet": (224, googlenet),
}


def images_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """10,000 images of values in [0, 1], and labels: of an npz with JPEGs in a row, or x_train and y_train."""
    with np.load(path) as data:
        if "x_train" in data:
            return np.float32(data["x_train"][:10_000]) / 255, data["y_train"][:10_000].reshape(-1)
        blob, ends = data["train_jpeg"].tobytes(), data["train_offset"][:10_001]
        jpegs = [blob[start:end] for start, end in zip(ends, ends[1:])]
        images = np.stack([tf.io.decode_jpeg(jpeg, channels=3).numpy() for jpeg in jpegs])
        return np.float32(images) / 255, data["train_label"][:10_000]


def batches(path: Path, batch: int, pixels: int) -> Iterator[tuple[tf.Tensor, np.ndarray]]:
    """Endless (x, y), of images enlarged."""
    rng = np.random.default_rng(0)
    images, labels = images_of(path)
    while True:
        places = rng.integers(len(images), size=batch)
        yield tf.image.resize(images[places] * 2 - 1, (pixels, pixels)), labels[places]


# --- Tables -----------------------------------------------------------------


def _sums(entry: dict, dtype: str) -> dict[str, int]:
    keys = ("plain", *CODECS)
    return {key: sum(layer[dtype][key] for layer in entry["layers"]) for key in keys}


def _density(entry: dict) -> float:
    elements = sum(layer["elements"] for layer in entry["layers"])
    return sum(layer["density"] * layer["elements"] for layer in entry["layers"]) / elements


def by_codec(entries: list[dict]) -> Iterator[str]:
    """Plain bytes / bytes of each codec, at the end; and zvc's formula for a density d and b bits a value."""
    yield f"| network | type | not zero | b / (1 + b d) | {' | '.join(CODECS)} |"
    yield "|---" * (4 + len(CODECS)) + "|"
    last = [entry for entry in entries if entry["step"] == entry["steps"]]
    for dtype in _DTYPES:
        bits = 8 * tf.as_dtype(dtype).size
        ratios: dict[str, list[float]] = {name: [] for name in CODECS}
        for entry in last:
            sums, density = _sums(entry, dtype), _density(entry)
            for name in CODECS:
                ratios[name].append(sums["plain"] / sums[name])
            formula = bits / (1 + bits * density)
            cells = " | ".join(f"{ratios[name][-1]:.2f}" for name in CODECS)
            yield f"| {entry['name']} | {dtype} | {density:.3f} | {formula:.2f} | {cells} |"
        if last:
            means = " | ".join(f"{statistics.mean(found):.2f}" for found in ratios.values())
            yield f"| *mean* | {dtype} | | | {means} |"


def by_moment(entries: list[dict]) -> Iterator[str]:
    """What training does to zvc, and the layers of the highest and the lowest ratio at its end."""
    yield "| network | loss, first and last | zvc, by step | lowest layer | highest layer |"
    yield "|---" * 5 + "|"
    for name in dict.fromkeys(entry["name"] for entry in entries):
        own = sorted((entry for entry in entries if entry["name"] == name), key=lambda entry: entry["step"])
        by_step = []
        for entry in own:
            sums = _sums(entry, "float32")
            by_step.append(f"{entry['step']}: {sums['plain'] / sums['zvc']:.2f}")
        losses = own[-1]["losses"]
        span = f"{losses[0]:.2f}, {statistics.mean(losses[-5:]):.2f}" if losses else ""
        ends = sorted(
            (layer["float32"]["plain"] / layer["float32"]["zvc"], layer["layer"])
            for layer in own[-1]["layers"]
        )
        low, high = (f"{ratio:.2f} ({layer})" for ratio, layer in (ends[0], ends[-1]))
        yield f"| {name} | {span} | {', '.join(by_step)} | {low} | {high} |"


if __name__ == "__main__":
    main()
