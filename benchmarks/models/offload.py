"""Training steps with tensors in a file: peak and time of plain, zvc and plane in turns, and ratios of the cDMA nets.

    python benchmarks/models/offload.py peaks --image 128 --out peaks.jsonl     # ResNet-50, batch 8
    python benchmarks/models/offload.py ratios --out ratios.jsonl               # zvc, beside the density formula
    python benchmarks/models/offload.py steps --count 2000                      # growth

Each variant lives in a process of its own, and they take turns step by step; every network adds a line to the file,
and is not measured again where it has one. The networks of `ratios` are those of cDMA (Rhu et al., 2018), trained for a
while on small images (or random ones) that are enlarged to `--image` pixels; the activations are ReLU's outputs.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.cli import bench_worker

layers = keras.layers
VARIANTS = ("plain", "zvc", "plane")
CLASSES = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("peaks", "ratios", "steps", "serve"))
    parser.add_argument("--image", type=int, default=128, help="pixels")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--count", type=int, default=5, help="measured steps; of `ratios` steps of training")
    parser.add_argument("--net", default="ResNet50", help="of keras.applications")
    parser.add_argument("--nets", nargs="+", default=list(NETS), help="of `ratios`")
    parser.add_argument("--data", type=Path, help="npz of images; random ones without")
    parser.add_argument("--folder", help="of the file")
    parser.add_argument("--inflight", default="256MB")
    parser.add_argument("--variant", choices=VARIANTS, default="zvc")
    parser.add_argument("--out", type=Path, default=Path("offload.jsonl"))
    options = parser.parse_args()
    {"peaks": peaks, "ratios": ratios, "steps": steps, "serve": serve}[options.what](options)
    return 0


def written(path: Path) -> dict[str, dict]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["name"]: entry for entry in map(json.loads, lines)}


def write(path: Path, entry: dict) -> None:
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")


# --- Peaks and times --------------------------------------------------------


def model_of(options: argparse.Namespace) -> tuple[keras.Model, ct.Offload | None]:
    keras.utils.set_random_seed(0)
    shape = (options.image, options.image, 3)
    model = getattr(keras.applications, options.net)(weights=None, input_shape=shape)
    model.compile(keras.optimizers.SGD(1e-3), "sparse_categorical_crossentropy", jit_compile=False)
    storage = None
    if options.variant != "plain":
        storage = ct.Offload(codec=options.variant, folder=options.folder, inflight=options.inflight)
        ct.compress_model(model, storage=storage)
    return model, storage


def serve(options: argparse.Namespace) -> None:
    """A variant's process: a step for each line of input, a line of JSON for each step."""
    model, storage = model_of(options)
    x, y = bench_worker.images(options.image, options.batch)
    for _ in range(2):
        model.train_on_batch(x, y)
    before = total(storage)
    print("ready", flush=True)
    for _ in sys.stdin:
        peak, resting, seconds = ct.memory.measure_call(lambda: model.train_on_batch(x, y))
        after = total(storage)
        moved = {key: after[key] - before[key] for key in after}
        before = after
        found = {"peak_bytes": peak, "resting_bytes": resting, "step_s": seconds, **moved}
        print(json.dumps(found), flush=True)


def total(storage: ct.Offload | None) -> dict[str, float]:
    sites = [] if storage is None else [traffic._asdict() for traffic in storage.traffic().values()]
    return {key: sum(site[key] for site in sites) for key in (sites[0] if sites else ())}


def peaks(options: argparse.Namespace) -> None:
    name = f"{options.net} {options.image} px, batch {options.batch}, inflight {options.inflight}"
    if name not in written(options.out):
        command = [sys.executable, str(Path(__file__).resolve()), "serve", "--net", options.net]
        command += [
            "--image",
            str(options.image),
            "--batch",
            str(options.batch),
            "--inflight",
            options.inflight,
        ]
        command += ["--folder", options.folder] if options.folder else []
        workers = {}
        for variant in VARIANTS:
            worker = subprocess.Popen(
                [*command, "--variant", variant], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            while worker.stdout.readline().strip() != "ready":
                if worker.poll() is not None:
                    raise SystemExit(f"{variant} failed")
            workers[variant] = worker
        found: dict[str, list] = {variant: [] for variant in VARIANTS}
        for _ in range(options.count):
            for variant, worker in workers.items():
                worker.stdin.write("\n")
                worker.stdin.flush()
                found[variant].append(json.loads(worker.stdout.readline()))
        for worker in workers.values():
            worker.stdin.close()
            worker.wait()
        write(options.out, {"name": name, "steps": found})
    for name, entry in written(options.out).items():
        print(
            f"\n{name}\n\n| variant | peak | plain / peak | step | step / plain | handed over | written | waited |"
        )
        print("|---" * 8 + "|")
        plain = entry["steps"]["plain"]
        for variant, measured in entry["steps"].items():
            peak = max(each["peak_bytes"] for each in measured)
            seconds = statistics.median(each["step_s"] for each in measured)
            slower = statistics.median(a["step_s"] / b["step_s"] for a, b in zip(measured, plain))
            ratio = max(each["peak_bytes"] for each in plain) / peak
            moved = [
                f"{statistics.median(each.get(key, 0) for each in measured) / 1e6:,.0f} MB"
                for key in ("stream_bytes", "written_bytes")
            ]
            waited = statistics.median(each.get("room_s", 0) + each.get("fetch_s", 0) for each in measured)
            cells = (variant, f"{peak / 1e6:,.0f} MB", f"{ratio:.1f}", f"{seconds:.2f} s", f"{slower:.2f}")
            print(f"| {' | '.join((*cells, *moved, f'{waited:.2f} s'))} |")


# --- Ratios of zvc ----------------------------------------------------------


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


NETS = {
    "AlexNet": alexnet,
    "OverFeat": overfeat,
    "NiN": nin,
    "VGG-16": vgg16,
    "SqueezeNet": squeezenet,
    "GoogLeNet": googlenet,
}


def ratios(options: argparse.Namespace) -> None:
    for name in options.nets:
        if name not in written(options.out):
            write(options.out, {"name": name, **ratio_of(name, options)})
    print("| network | loss, first and last | not zero | zvc | 32 / (1 + 32 d) |\n|---|---|---|---|---|")
    found = written(options.out)
    for name, entry in found.items():
        losses = f"{entry['losses'][0]:.2f} {entry['losses'][-1]:.2f}"
        print(f"| {name} | {losses} | {entry['density']:.3f} | {entry['zvc']:.3f} | {entry['formula']:.3f} |")
    print(f"| mean | | | {statistics.mean(entry['zvc'] for entry in found.values()):.2f} | |")


def ratio_of(name: str, options: argparse.Namespace) -> dict:
    keras.utils.set_random_seed(0)
    inputs = keras.Input((options.image, options.image, 3))
    model = keras.Model(inputs, layers.Dense(CLASSES)(NETS[name](inputs)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss, jit_compile=False)
    losses = []
    for _, (x, y) in zip(range(options.count), batches(options)):
        losses.append(float(model.train_on_batch(x, y)))
    x, _ = next(iter(batches(options)))
    rectified = [
        layer.output for layer in model.layers if getattr(layer, "activation", None) is keras.activations.relu
    ]
    values = nonzero = streamed = 0
    for activation in keras.Model(inputs, rectified)(x, training=True):
        _, stream, _ = ct.codecs.get("zvc").compress(
            activation, tf.zeros(len(ct.codecs.State._fields)), 0.1, False
        )
        values += int(tf.size(activation))
        nonzero += int(tf.math.count_nonzero(activation))
        streamed += int(tf.size(stream))
    density = nonzero / values
    return {
        "losses": losses,
        "density": density,
        "zvc": 4 * values / streamed,
        "formula": 32 / (1 + 32 * density),
        "image": options.image,
        "steps": options.count,
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


def batches(options: argparse.Namespace) -> Any:
    """Endless (x, y), of images enlarged."""
    rng = np.random.default_rng(0)
    if options.data is None:
        while True:
            x = rng.normal(size=(options.batch, options.image, options.image, 3)).astype("float32")
            yield x, rng.integers(CLASSES, size=options.batch)
    images, labels = images_of(options.data)
    while True:
        places = rng.integers(len(images), size=options.batch)
        x = tf.image.resize(images[places] * 2 - 1, (options.image, options.image))
        yield x, labels[places]


# --- Many steps -------------------------------------------------------------


def steps(options: argparse.Namespace) -> None:
    """Training of a small network; prints file and resident memory of the process ten times."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        keras.utils.set_random_seed(0)
        x = inputs = keras.Input((32, 32, 32))
        for _ in range(8):
            x = convolution(x, 32)
        model = keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x)))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        ct.compress_model(model, storage=ct.Offload(codec=options.variant, folder=folder))
        rng = np.random.default_rng(0)
        x = tf.constant(rng.normal(size=(16, 32, 32, 32)).astype("float32"))
        y = tf.constant(rng.integers(CLASSES, size=16))
        for count in range(1, options.count + 1):
            model.train_on_batch(x, y)
            if count % max(options.count // 10, 1) == 0:
                (file,) = Path(folder).glob("*.spill")
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                resident = pages * resource.getpagesize() / 1e6
                print(
                    f"{count} steps: file {file.stat().st_size / 1e6:.1f} MB, resident {resident:.0f} MB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
