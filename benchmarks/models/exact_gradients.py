"""How far gradients of training steps with the lossless codec are from plain ones, over 20 steps.

    python benchmarks/models/exact_gradients.py --out exact_gradients.jsonl

Each step has both gradients from the same weights, states and batch; plain's are applied. TensorFlow's graph optimizer
fuses other operations where tensors are held, and rounds otherwise then: with its remapper off, the gradients are to be
equal bit for bit; with it on, off by 1e-5 of the norm of all of them at most. Batch normalization is kept as Keras
has it: the fused one rounds otherwise. Every measurement adds a line to the file; those that are there already are not
made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hub_models import LANGUAGE_MODELS, VISION_MODELS, Sizes, language_model, vision_model

APPLICATIONS = ("ResNet50", "DenseNet121", "MobileNetV2", "EfficientNetB0", "ConvNeXtTiny", "VGG16")
MODELS = (*LANGUAGE_MODELS, *VISION_MODELS, *APPLICATIONS)
REMAPPER = ("off", "on")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("exact_gradients.jsonl"))
    parser.add_argument("--remapper", choices=REMAPPER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.remapper:
        print(json.dumps(compare(options.models[0], options.remapper == "on", options.steps)))
        return 0
    failed = False
    for name in options.models:
        for remapper in REMAPPER:
            if (name, remapper) not in measured(options.out):
                failed |= not run(name, remapper, options)
    print(table(measured(options.out), options.models))
    return int(failed)


def measured(path: Path) -> dict[tuple[str, str], dict]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {tuple(entry["key"]): entry for entry in map(json.loads, lines)}


def run(name: str, remapper: str, options: argparse.Namespace) -> bool:
    print(f"{name}, remapper {remapper}", file=sys.stderr, flush=True)
    command = [
        sys.executable,
        __file__,
        "--models",
        name,
        "--remapper",
        remapper,
        "--steps",
        str(options.steps),
    ]
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        print(child.stderr[-2000:], file=sys.stderr)
        return False
    entry = {"key": (name, remapper), **json.loads(child.stdout.splitlines()[-1])}
    with options.out.open("a") as file:
        file.write(json.dumps(entry) + "\n")
    return True


def table(found: dict[tuple[str, str], dict], models: list[str]) -> str:
    rows = [
        "| model | steps | held | equal, remapper off | difference, off | on |",
        "|---|---|---|---|---|---|",
    ]
    for name in models:
        pair = [found.get((name, remapper)) for remapper in REMAPPER]
        if all(pair):
            off, on = pair
            rows.append(
                f"| {name} | {off['steps']} | {off['held']} tensors | {off['equal']} of {off['gradients']} gradients "
                f"| {off['difference']:.1e} | {on['difference']:.1e} |"
            )
    return "\n".join(rows)


def make(name: str, batches: int) -> tuple[Any, Any, Any]:
    """(model, x, y) of small sizes; images of applications are 64 x 64."""
    import numpy as np
    from tensorflow import keras

    keras.utils.set_random_seed(0)
    if name in LANGUAGE_MODELS:
        return language_model(name, Sizes(batch=4, tokens=64, vocabulary=100, width=64, blocks=4), batches)
    if name in VISION_MODELS:
        return vision_model(name, 64, 4, batches)
    model = getattr(keras.applications, name)(weights=None, input_shape=(64, 64, 3), classes=10)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4 * batches, 64, 64, 3)).astype("float32")
    return model, x, rng.integers(0, 10, len(x))


def compare(name: str, remapper: bool, steps: int) -> dict[str, Any]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras

    import tf_comptrain as ct

    tf.config.optimizer.set_experimental_options({"remapping": remapper})
    # Parts of a sum may come in another order each time.
    tf.config.experimental.enable_op_determinism()
    model, x, y = make(name, steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=name not in APPLICATIONS)
    optimizer = keras.optimizers.SGD(0.01)
    optimizer.build(model.trainable_variables)
    model.compile(optimizer, loss, metrics=[])

    trained: list = []  # some models have weights that nothing reads

    def traced_step():
        @tf.function(autograph=False)
        def step(x, y):
            with tf.GradientTape() as tape:
                value = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
            found = tape.gradient(value, model.trainable_variables)
            trained[:] = [v for v, g in zip(model.trainable_variables, found) if g is not None]
            return [tf.convert_to_tensor(g) for g in found if g is not None]

        return step

    def batch(k: int) -> Any:
        size = len(y) // steps
        return tf.nest.map_structure(lambda a: tf.constant(a[k * size : (k + 1) * size]), (x, y))

    def storage(layer: Any) -> str | None:
        return "keep" if isinstance(layer, keras.layers.BatchNormalization) else None

    def states() -> list:
        return [v.numpy() for v in model.non_trainable_variables]

    plain = traced_step()
    before = states()
    plain(*batch(0))  # traced while the model is plain
    ct.compress_model(model, codec="zvc", storage=storage)
    ours = traced_step()
    equal = gradients = 0
    difference = 0.0
    for k in range(steps):
        found = []
        for step in (plain, ours):
            for variable, value in zip(model.non_trainable_variables, before):
                variable.assign(value)
            found.append([g.numpy() for g in step(*batch(k))])
        before = states()
        pairs = list(zip(*found))
        gradients += len(pairs)
        equal += sum(np.array_equal(a, b) for a, b in pairs)
        off = np.sqrt(sum(np.sum(np.square(a - b, dtype="float64")) for a, b in pairs))
        norm = np.sqrt(sum(np.sum(np.square(a, dtype="float64")) for a, _ in pairs))
        difference = max(difference, float(off / norm))
        optimizer.apply([tf.constant(a) for a, _ in pairs], trained)
    rows = ct.report(model).rows
    return {
        "steps": steps,
        "held": sum(row.storage != "keep" for row in rows),
        "equal": equal,
        "gradients": gradients,
        "difference": difference,
    }


if __name__ == "__main__":
    sys.exit(main())
