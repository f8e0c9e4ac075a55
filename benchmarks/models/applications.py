"""Every model of keras.applications: what stays plain in it, and three training steps against plain Keras.

    python benchmarks/models/applications.py --out applications.jsonl

Each model is built with random weights, its top and 10 classes, for images of 64 pixels (75 or 128 for some),
and trained for three steps from the same weights: plain, and compressed with a bound of 1e-6. Two controls say what
roundings alone do: "fused" keeps every tensor and changes nothing but batch normalization, which runs as TensorFlow's
fused kernel in compressed models; "rounded" is plain, from weights that are off by 1e-7 of themselves. Gradients
are clipped to a norm of 1: those of deep untrained networks are in the hundreds, and then the third loss says how
roundings grow, not whether gradients agree. Each model runs in a process of its own and adds a line to the file; models
that are there already are not run again. The table is printed from the file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.cli.bench_worker import fused_batch_norm
from tf_comptrain.graph.crossings import NEEDED_AT_ONCE

MODELS = [name for name in sorted(dir(keras.applications)) if name[:1].isupper()]
IMAGE = 64
# Inception's last layers would see one pixel of smaller images, and normalize four values.
IMAGES = {"Xception": 75, "InceptionV3": 128, "InceptionResNetV2": 128}
CLASSES = 10
BOUND = 1e-6
TOLERANCE = 1e-3


def build(name: str, image: int | None = None) -> keras.Model:
    keras.utils.set_random_seed(0)
    size = image or IMAGES.get(name, IMAGE)
    return getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=CLASSES)


def kept_tensors(report: ct.Report) -> list[str]:
    """What is held as it is, except for what the backward pass begins with: that is held for no time."""
    return [f"{row.layer}: {row.note}" for row in report.skipped if row.note != NEEDED_AT_ONCE]


def losses(model: keras.Model, steps: int, batch: int) -> list[float]:
    """Of some training steps on one random batch."""
    model.compile(keras.optimizers.SGD(1e-4, global_clipnorm=1.0), "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, *model.input_shape[1:])).astype("float32")
    y = rng.integers(CLASSES, size=batch)
    return model.fit(x, y, batch_size=batch, epochs=steps, shuffle=False, verbose=0).history["loss"]


def compare(name: str, steps: int, batch: int, image: int | None = None, controls: bool = True) -> dict:
    """One model's line; without `controls`, what roundings alone do is left out."""
    start = time.perf_counter()
    model = build(name, image)
    before = [variable.numpy() for variable in model.variables]

    def trained(off: float = 0.0) -> list[float]:
        rng = np.random.default_rng(0)
        for variable, value in zip(model.variables, before):
            if value.dtype.kind == "f":  # a seed is an integer
                value = (value * (1 + off * rng.standard_normal(value.shape))).astype(value.dtype)
            variable.assign(value)
        return losses(model, steps, batch) if steps else []

    plain, rounded, fused = trained(), [], []
    if controls:
        rounded = trained(off=1e-7)
        ct.compress_model(model, storage=fused_batch_norm)
        fused = trained()
        ct.restore_model(model)
    report = ct.compress_model(model, error_bound=BOUND)
    compressed = trained()
    return {
        "model": name,
        "image": model.input_shape[1],
        "batch": batch,
        "parameters": model.count_params(),
        "tensors_held": sum(row.storage != "keep" for row in report.rows),
        "kept": kept_tensors(report),
        "plain": plain,
        "rounded": rounded,
        "fused": fused,
        "compressed": compressed,
        "seconds": time.perf_counter() - start,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--out", type=Path, default=Path("applications.jsonl"))
    parser.add_argument("--steps", type=int, default=3, help="0: only list what stays plain")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--image", type=int, help="pixels")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        for name in options.models:
            line = compare(name, options.steps, options.batch, options.image)
            with options.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return 0
    failed = []
    for name in options.models:
        if name not in done(options.out, options.steps):
            command = [sys.executable, __file__, *sys.argv[1:], "--here", "--models", name]
            if subprocess.run(command).returncode:
                failed.append(name)
    print(table(done(options.out, options.steps)))
    return 1 if failed else 0


def done(path: Path, steps: int) -> dict[str, dict]:
    """The file's lines of at least so many steps, by model."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {entry["model"]: entry for entry in map(json.loads, lines) if len(entry["plain"]) >= steps}


def difference(entry: dict, variant: str = "compressed") -> float:
    """Of a variant's losses, the largest one relative to plain Keras."""
    return max((abs(a / b - 1) for a, b in zip(entry[variant], entry["plain"])), default=0.0)


def table(entries: dict[str, dict]) -> str:
    """As Markdown."""
    rows = [
        "| model | image | parameters | tensors held | kept plain | losses, plain | compressed / plain - 1 "
        "| fused / plain - 1 | rounded / plain - 1 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in MODELS:
        if name in entries:
            entry = entries[name]
            losses = ", ".join(f"{loss:.4f}" for loss in entry["plain"])
            variants = ("compressed", "fused", "rounded")
            off = " | ".join(f"{difference(entry, name):.1e}" if entry["plain"] else "" for name in variants)
            rows.append(
                f"| {name} | {entry['image']} | {entry['parameters'] / 1e6:.1f} M | {entry['tensors_held']} "
                f"| {len(entry['kept'])} | {losses} | {off} |"
            )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
