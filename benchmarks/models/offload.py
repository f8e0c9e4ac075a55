"""Training steps with tensors in a file: peak and time of plain, zvc and plane in turns; growth over many steps.

    python benchmarks/models/offload.py peaks --image 128 --out peaks.jsonl     # ResNet-50, batch 8
    python benchmarks/models/offload.py steps --count 2000                      # growth
    python benchmarks/models/offload.py transfers --picture transfers.png       # what moved when, in one step

Each variant lives in a process of its own, and they take turns step by step; every network adds a line to the file,
and is not measured again where it has one. `cdma.py` has the ratios of the networks that cDMA measured.
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
    parser.add_argument("what", choices=("peaks", "steps", "transfers", "serve"))
    parser.add_argument("--image", type=int, default=128, help="pixels")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--count", type=int, default=5, help="measured steps")
    parser.add_argument("--net", default="ResNet50", help="of keras.applications")
    parser.add_argument("--folder", help="of the file")
    parser.add_argument("--inflight", help="such as 256MB (two of the largest tensors)")
    parser.add_argument("--variant", choices=VARIANTS, default="zvc")
    parser.add_argument("--picture", type=Path, default=Path("transfers.png"))
    parser.add_argument("--out", type=Path, default=Path("offload.jsonl"))
    options = parser.parse_args()
    {"peaks": peaks, "steps": steps, "transfers": transfers, "serve": serve}[options.what](options)
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
    print(json.dumps({"theoretical_bytes": theoretical_saving(model, x, y)}), flush=True)
    for _ in sys.stdin:
        peak, resting, seconds = ct.memory.measure_call(lambda: model.train_on_batch(x, y))
        after = total(storage)
        moved = {key: after[key] - before[key] for key in after}
        before = after
        found = {"peak_bytes": peak, "resting_bytes": resting, "step_s": seconds, **moved}
        print(json.dumps(found), flush=True)


def theoretical_saving(model: keras.Model, x: np.ndarray, y: np.ndarray) -> int:
    """Bytes: what plain Keras holds, less what is not moved and two buffers for what comes back."""
    found = ct.memory.report(model, x, y, timeline=False)
    moved = [row.value_bytes for row in found.rows if row.storage == "offload"]
    return found.saved_plain_bytes - found.saved_bytes - 2 * max(moved, default=0)


def total(storage: ct.Offload | None) -> dict[str, float]:
    sites = [] if storage is None else [traffic._asdict() for traffic in storage.traffic().values()]
    return {key: sum(site[key] for site in sites) for key in (sites[0] if sites else ())}


def peaks(options: argparse.Namespace) -> None:
    name = f"{options.net} {options.image} px, batch {options.batch}, inflight {options.inflight or 'of two tensors'}"
    if name not in written(options.out):
        command = [sys.executable, str(Path(__file__).resolve()), "serve", "--net", options.net]
        command += [
            "--image",
            str(options.image),
            "--batch",
            str(options.batch),
        ]
        command += ["--inflight", options.inflight] if options.inflight else []
        command += ["--folder", options.folder] if options.folder else []
        workers, ready = {}, {}
        for variant in VARIANTS:
            worker = subprocess.Popen(
                [*command, "--variant", variant], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            line = worker.stdout.readline()
            if not line:
                raise SystemExit(f"{variant} failed")
            workers[variant], ready[variant] = worker, json.loads(line)
        found: dict[str, list] = {variant: [] for variant in VARIANTS}
        for _ in range(options.count):
            for variant, worker in workers.items():
                worker.stdin.write("\n")
                worker.stdin.flush()
                found[variant].append(json.loads(worker.stdout.readline()))
        for worker in workers.values():
            worker.stdin.close()
            worker.wait()
        write(options.out, {"name": name, "ready": ready, "steps": found})
    for name, entry in written(options.out).items():
        print(
            f"\n{name}\n\n| variant | peak | plain / peak | of medians | saved / theory | step | step / plain "
            "| handed over | written | waited |"
        )
        print("|---" * 10 + "|")
        plain = entry["steps"]["plain"]
        for variant, measured in entry["steps"].items():
            peaks_bytes, of_plain = ([each["peak_bytes"] for each in of] for of in (measured, plain))
            peak, highest = max(peaks_bytes), max(of_plain)
            of_medians = statistics.median(of_plain) / statistics.median(peaks_bytes)
            theory = entry["ready"][variant]["theoretical_bytes"]
            saved = f"{(highest - peak) / theory:.0%}" if theory > 0 else ""
            seconds = statistics.median(each["step_s"] for each in measured)
            slower = statistics.median(a["step_s"] / b["step_s"] for a, b in zip(measured, plain))
            moved = [
                f"{statistics.median(each.get(key, 0) for each in measured) / 1e6:,.0f} MB"
                for key in ("stream_bytes", "written_bytes")
            ]
            waited = statistics.median(each.get("room_s", 0) + each.get("fetch_s", 0) for each in measured)
            cells = (variant, f"{peak / 1e6:,.0f} MB", f"{highest / peak:.1f}", f"{of_medians:.1f}", saved)
            cells += (f"{seconds:.2f} s", f"{slower:.2f}")
            print(f"| {' | '.join((*cells, *moved, f'{waited:.2f} s'))} |")


# --- Many steps -------------------------------------------------------------


def steps(options: argparse.Namespace) -> None:
    """Training of a small network; prints file and resident memory of the process ten times."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        keras.utils.set_random_seed(0)
        x = inputs = keras.Input((32, 32, 32))
        for _ in range(8):
            x = layers.Conv2D(32, 3, padding="same", activation="relu", kernel_initializer="he_normal")(x)
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


# --- One step ---------------------------------------------------------------


def transfers(options: argparse.Namespace) -> None:
    model, _ = model_of(options)
    found = ct.memory.transfers(model, *bench_worker.images(options.image, options.batch))
    print(found)
    found.plot(options.picture)


if __name__ == "__main__":
    main()
