"""A character decoder trained plain and compressed: validation loss and saved bytes.

    python benchmarks/models/decoder.py tinyshakespeare.txt --out decoder.jsonl --seeds 1 2

The first 90% of the text train, the rest validates. Both variants of a seed see the same passages in
the same order from the same weights. Each run adds a line to the file; those that are there already
are not run again. The table is printed from the file.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import nets
import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct

VARIANTS = ("plain", "compressed")
_SIZES = ("width", "depth", "context", "batch", "steps", "dropout")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, default=Path("decoder.jsonl"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--dropout", type=float, default=0.2)
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in _SIZES}
    text = nets.encoded(options.text)
    for seed in options.seeds:
        for variant in VARIANTS:
            if (seed, variant) not in done(options.out, sizes):
                entry = {"seed": seed, "variant": variant, **sizes, **train(text, variant, seed, sizes)}
                with options.out.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
    print(table(done(options.out, sizes)))
    return 0


def done(path: Path, sizes: dict) -> dict[tuple[int, str], dict]:
    """The file's runs of these sizes, by (seed, variant)."""
    lines = path.read_text().splitlines() if path.exists() else []
    entries = [entry for entry in map(json.loads, lines) if sizes.items() <= entry.items()]
    return {(entry["seed"], entry["variant"]): entry for entry in entries}


def train(text: np.ndarray, variant: str, seed: int, sizes: dict) -> dict:
    """One training; validation loss in nats a character."""
    keras.utils.set_random_seed(seed)
    model = nets.decoder(False, sizes["width"], sizes["depth"], sizes["dropout"], sizes["context"])
    if variant == "compressed":
        ct.compress_model(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = keras.optimizers.schedules.CosineDecay(
        0.0, sizes["steps"], alpha=0.01, warmup_target=1e-3, warmup_steps=sizes["steps"] // 20
    )
    model.compile(keras.optimizers.AdamW(rate, weight_decay=0.01, clipnorm=1.0), loss)
    split = len(text) * 9 // 10
    training = passages(text[:split], sizes["context"], seed)
    batches = training.batch(sizes["batch"], drop_remainder=True).take(sizes["steps"])
    history = model.fit(batches, verbose=2).history
    held_out = text[split:]
    rows = (len(held_out) - 1) // sizes["context"]
    count = rows * sizes["context"]
    x, y = (held_out[k : count + k].reshape(rows, -1) for k in range(2))
    batch = [tf.constant(part[: sizes["batch"]]) for part in (x, y)]
    return {
        "training_loss": history["loss"][-1],
        "validation_loss": model.evaluate(x, y, batch_size=sizes["batch"], verbose=0),
        "saved_bytes": ct.memory.saved_bytes(model, *batch),
    }


def passages(text: np.ndarray, context: int, seed: int) -> tf.data.Dataset:
    """Random passages without end, and the characters that follow each of theirs."""

    def passage(number):
        start = tf.random.stateless_uniform([], [seed, number], 0, len(text) - context - 1, tf.int64)
        taken = characters[start : start + context + 1]
        return taken[:-1], taken[1:]

    characters = tf.constant(text)
    return tf.data.Dataset.counter().map(passage)


def table(runs: dict[tuple[int, str], dict]) -> str:
    """A row a seed, as Markdown."""
    rows = [
        "| seed | validation loss plain | compressed | difference | saved plain / compressed |",
        "|---|---|---|---|---|",
    ]
    for seed in sorted({seed for seed, _ in runs}):
        if all((seed, variant) in runs for variant in VARIANTS):
            plain, ours = (runs[seed, variant] for variant in VARIANTS)
            rows.append(
                f"| {seed} | {plain['validation_loss']:.4f} | {ours['validation_loss']:.4f} "
                f"| {ours['validation_loss'] / plain['validation_loss'] - 1:+.2%} "
                f"| {plain['saved_bytes'] / ours['saved_bytes']:.1f} |"
            )
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
