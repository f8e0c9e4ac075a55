"""Everything that a machine with a GPU should be asked, in one command; the tables come last.

    python benchmarks/gpu/run.py [--out results/gpu] [--only codec step batch ...] [--quick]

Needs a built tf_comptrain with a GPU TensorFlow (make build) and, for the codecs, nvcc. Each measurement
runs in a process of its own and leaves a JSON file in the folder: run again, and what is there already is
not repeated. --quick asks each question once, in small: for a first look, not for figures.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "build_native.py"
CODEC_PROGRAM = ROOT / "build" / "native" / "cuda" / "codec_gpu"
TIMEOUT_S = 3600


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/gpu"))
    parser.add_argument("--only", nargs="*", default=[], help="names of measurements begin with one of these")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--step", type=json.loads, help=argparse.SUPPRESS)  # the worker's own call
    args = parser.parse_args()
    if args.step is not None:
        print(json.dumps(train(**args.step)))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    measured = {}
    for name, measure in measurements(args.quick):
        if args.only and not name.startswith(tuple(args.only)):
            continue
        path = args.out / f"{name}.json"
        if not path.exists():
            print(f"{name} ...", flush=True)
            began = time.monotonic()
            result = measure()
            result["wall_s"] = round(time.monotonic() - began, 1)
            path.write_text(json.dumps(result, indent=1))
        measured[name] = json.loads(path.read_text())
    report(measured)
    return 1 if any(result.get("error") for result in measured.values()) else 0


def measurements(quick: bool) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """(name, how): correctness first, then speed, then what may end in lack of memory."""
    yield (
        "tests",
        lambda: run([sys.executable, "-m", "pytest", "-q", "tests/test_xla.py", "tests/test_gpu.py"]),
    )
    yield "codec", lambda: run([sys.executable, str(TOOL), "gpu", "50" if quick else "1000"])
    for tool in ("memcheck", "racecheck", "initcheck"):
        yield f"sanitizer-{tool}", lambda tool=tool: sanitizer(tool, 10 if quick else 60)
    for dtype in ("float32", "mixed_bfloat16"):
        for jit in (True, False):
            for batch in (16,) if quick else (64, 256):
                for compress in (False, True):
                    settings = {"batch": batch, "dtype": dtype, "jit": jit, "compress": compress}
                    name = "step-" + "-".join(map(str, settings.values()))
                    yield name, lambda s=settings: step(s, 3 if quick else 20)
    for model in ("ResNet50",) if quick else ("ResNet50", "ResNet152"):
        for compress in (False, True):
            yield (
                f"batch-{model}-{compress}",
                lambda m=model, c=compress: largest_batch(m, c, 64 if quick else 0),
            )


def run(command: list[str]) -> dict[str, Any]:
    """{"text": the end of the output} and, where the command failed, {"error": why}."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {TIMEOUT_S} s"}
    result = {"text": done.stdout[-6000:]}
    if done.returncode:
        result["error"] = f"exit status {done.returncode}"
    return result


def sanitizer(tool: str, shapes: int) -> dict[str, Any]:
    program = shutil.which("compute-sanitizer")
    if program is None or not CODEC_PROGRAM.exists():
        return {"text": "skipped: no compute-sanitizer, or the codec program is not built"}
    return run([program, "--tool", tool, "--error-exitcode", "9", str(CODEC_PROGRAM), str(shapes), "0"])


def step(settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """One network, one way of training, in a process of its own."""
    worker = [
        sys.executable,
        __file__,
        "--step",
        json.dumps({"model": "ResNet50", "steps": steps, **settings}),
    ]
    result = run(worker)
    if "error" in result:
        return result
    return json.loads(result["text"].strip().splitlines()[-1])


def largest_batch(model: str, compress: bool, limit: int) -> dict[str, Any]:
    """By doubling and halving; every size that fits has trained for some steps under XLA."""
    fits, fails, batch = 0, None, 32
    while fails is None or fails - fits > max(8, fits // 32):
        settings = {"model": model, "batch": batch, "dtype": "float32", "jit": True, "compress": compress}
        if "error" in step(settings, 3):
            fails = batch
        else:
            fits = batch
        if limit and fits >= limit:
            break
        batch = fits * 2 if fails is None else (fits + fails) // 2 // 8 * 8
        if batch <= fits:
            break
    return {"model": model, "compress": compress, "batch": fits, "fails_at": fails}


def train(
    model: str, batch: int, dtype: str, jit: bool, compress: bool, steps: int, image: int = 224
) -> dict[str, Any]:
    """Trains on random images; images/s by the median step, peak over the resting level."""
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras

    import tf_comptrain as ct
    from tf_comptrain.model import instrumentation

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(dtype)
    network = getattr(keras.applications, model)(weights=None, input_shape=(image, image, 3))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    network.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=jit)
    obstacle = ct.compress_model(network).obstacle if compress else None
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(batch, image, image, 3)), tf.float32)
    y = tf.constant(rng.integers(0, 1000, batch))
    for _ in range(3):  # compiles; rates may rise once
        network.train_on_batch(x, y)
    measured = ct.memory.measure_step(network, x, y, steps=steps)
    result = {
        "model": model, "batch": batch, "dtype": dtype, "jit": jit, "compress": compress,
        "images_s": batch / measured.step_s, "peak_bytes": measured.peak_bytes, "obstacle": obstacle,
    }  # fmt: skip
    if compress:
        result["rate_changes"] = [list(change) for change in instrumentation(network).rate_changes]
    return result


def report(measured: dict[str, dict[str, Any]]) -> None:
    for name, result in measured.items():
        if name.split("-")[0] in ("tests", "codec", "sanitizer"):
            print(f"\n== {name}: {result.get('error', 'ok')}\n{result.get('text', '')[-1500:].rstrip()}")
    print("\n| measurement | images/s | peak | remarks |\n|---|---|---|---|")
    for name, result in measured.items():
        if name.startswith("step"):
            remarks = result.get("error") or result.get("obstacle") or ""
            changes = len(result.get("rate_changes", ()))
            remarks += f" {changes} rates raised" if changes else ""
            peak = f"{result.get('peak_bytes', 0) / 1e6:,.0f} MB"
            print(f"| {name} | {result.get('images_s', 0):.0f} | {peak} | {remarks} |")
        elif name.startswith("batch"):
            print(f"| {name} | | | largest batch {result['batch']}, {result['fails_at']} failed |")


if __name__ == "__main__":
    sys.exit(main())
