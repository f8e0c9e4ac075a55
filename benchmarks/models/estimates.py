"""What `tf-comptrain estimate` predicts, beside the peak of `fit`, on trainings of tests/kinds.

    python benchmarks/models/estimates.py

The batches are large enough that the activations, and not the allocator, decide. `fit` runs 12 steps, in a
process of its own; its peak is the allocator's highest, from the first step on. Rows go to
results/estimates.jsonl; those that are there are not measured again.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = HERE / "results" / "estimates.jsonl"
STEPS = 12
# Kind -> (its module in tests/kinds, samples a step).
KINDS = {
    "vae": ("vision", 2048),
    "simclr": ("vision", 512),
    "unet": ("vision", 128),
    "diffusion": ("vision", 512),
    "conv3d": ("vision", 128),
    "vision_transformer": ("vision", 512),
    "masked_language_model": ("sequences", 512),
    "dilated_tcn": ("sequences", 1024),
    "gpt_with_rotary_positions": ("sequences", 256),
    "pointnet": ("structures", 256),
}


def build(name: str) -> tuple:
    """(model, x, y) of a kind: what `tf-comptrain estimate FILE.py:FUNCTION` takes."""
    sys.path.insert(0, str(ROOT / "tests" / "kinds"))
    from kind import FromKeras
    from tensorflow import keras

    class Training(keras.Model):
        """A kind's own step as a train step of `fit`."""

        def __init__(self, kind: Any):
            super().__init__()
            self.parts, self.kind_step = list(kind.models), kind.step

        def call(self, x: Any) -> Any:
            return x

        def train_step(self, data: Any) -> dict:
            (batch,) = data
            return {"loss": self.kind_step(*batch)[0]}

    keras.utils.set_random_seed(0)
    kind = getattr(importlib.import_module(KINDS[name][0]), name)()
    if isinstance(getattr(kind.step, "__self__", None), FromKeras):
        x, y = kind.batches[0]
        return kind.models[0], x, y
    model = Training(kind)
    model.compile(jit_compile=False)
    return model, kind.batches[0], None


for _name in KINDS:
    globals()[_name] = functools.partial(build, _name)


def fitted(name: str, compressed: bool) -> int:
    """The allocator's highest in `fit`, weights and optimizer included."""
    import tensorflow as tf

    import tf_comptrain as ct
    from tf_comptrain.cli import model_source
    from tf_comptrain.memory import counters

    loaded = model_source.load(f"{__file__}:{name}")
    if compressed:
        ct.compress_model(loaded.model)
    x, y = loaded.batch(KINDS[name][1])
    data = tf.data.Dataset.from_tensors((x,) if y is None else (x, y)).repeat(STEPS)
    counters.reset_peak()
    loaded.model.fit(data, verbose=0)
    return counters.peak_bytes()


def estimated(name: str) -> dict[str, dict]:
    """What the command's process of each way says."""
    found = {}
    for way in ("plain", "compressed"):
        worker = [sys.executable, "-m", "tf_comptrain.cli.estimate_worker", "--model", f"{__file__}:{name}"]
        worker += ["--image", "0", "--batch", str(KINDS[name][1]), "--way", way]
        run = subprocess.run(worker, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True)
        found[way] = json.loads(run.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--fit", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fit:
        print(fitted(args.fit[0], args.fit[1] == "compressed"))
        return
    args.results.parent.mkdir(exist_ok=True)
    rows = (
        [json.loads(line) for line in args.results.read_text().splitlines()] if args.results.exists() else []
    )
    done = {row["kind"] for row in rows}
    for name in args.kinds:
        if name in done:
            continue
        row: dict[str, Any] = {"kind": name, "batch": KINDS[name][1]}
        for way, answer in estimated(name).items():
            run = [sys.executable, __file__, "--fit", name, way]
            printed = subprocess.run(
                run, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True
            )
            row[way] = {
                "estimated_bytes": answer["line"][-1][1],
                "fit_bytes": int(printed.stdout.split()[-1]),
            }
        rows.append(row)
        with open(args.results, "a") as file:
            file.write(json.dumps(row) + "\n")
        print(name, row, flush=True)
    print(
        "| training | samples a step | plain, estimated | of fit | ratio | compressed, estimated | of fit | ratio |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        cells = [row["kind"], str(row["batch"])]
        for way in ("plain", "compressed"):
            guess, fit = row[way]["estimated_bytes"], row[way]["fit_bytes"]
            cells += [f"{guess / 1e6:.1f} MB", f"{fit / 1e6:.1f} MB", f"{guess / fit:.3f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
