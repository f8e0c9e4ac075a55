"""The networks of peaks.py: keras.applications models, a vision transformer and a decoder of plain Keras layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.cli import bench_worker, model_source

layers = keras.layers

IMAGE = 224
CONTEXT = 256  # characters a sample
CHARACTERS = 65


class Net(NamedTuple):
    """A network of the table.

    Attributes:
      build: Returns the uncompiled model; takes whether it is to be compressed, for networks whose
        compressed form is built differently.
      batch: Samples a step.
      target: Peak plain / compressed to reach.
      step_target: Step time compressed / plain not to exceed.
      text: Its input is text.
      options: Arguments of compress_model, where not the defaults.
    """

    build: Callable[[bool], keras.Model]
    batch: int
    target: float
    step_target: float
    text: bool = False
    options: Mapping[str, str] = MappingProxyType({})

    def make(self, variant: str, batch: int, text: Path | None) -> tuple[keras.Model, tf.Tensor, tf.Tensor]:
        """The compiled model in a variant (bench_worker.VARIANTS), and a batch (x, y)."""
        keras.utils.set_random_seed(0)
        model = bench_worker.prepare(self.build(variant == "compressed"), variant, **self.options)
        return model, *(characters(text, batch) if self.text else bench_worker.images(IMAGE, batch))


def application(name: str) -> Callable[[bool], keras.Model]:
    def build(compressed: bool) -> keras.Model:
        return getattr(keras.applications, name)(weights=None, input_shape=(IMAGE, IMAGE, 3))

    return build


def vgg16(compressed: bool) -> keras.Model:
    """VGG-16 without its three dense layers of 124 million weights; compressed, its first two blocks run by slices."""
    base = keras.applications.VGG16(
        weights=None, include_top=False, pooling="avg", input_shape=(IMAGE, IMAGE, 3)
    )
    if compressed:
        first = keras.Model(base.input, base.get_layer("block2_pool").output, name="first_blocks")
        rest = keras.Model(base.get_layer("block2_pool").output, base.output, name="other_blocks")
        y = rest(ct.Recompute(first, slices=16)(base.input))
    else:
        y = base.output
    return keras.Model(base.input, layers.Dense(model_source.CLASSES)(y), name="vgg16")


class Positions(layers.Layer):
    """Adds a trained vector to each position."""

    def build(self, shape):
        self.table = self.add_weight(
            shape=shape[1:], initializer=keras.initializers.RandomNormal(stddev=0.02)
        )

    def call(self, x):
        return x + self.table


def transformer_block(x, width: int, heads: int, dropout: float, causal: bool):
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(y, y, use_causal_mask=causal)
    x = layers.Add()([x, layers.Dropout(dropout)(y)])
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.Dense(4 * width, activation="gelu")(y)
    y = layers.Dense(width)(y)
    return layers.Add()([x, layers.Dropout(dropout)(y)])


def vit(width: int, heads: int, depth: int = 12, patch: int = 16) -> Callable[[bool], keras.Model]:
    """A vision transformer over 16x16 patches; the mean over patches in place of a class token."""

    def build(compressed: bool) -> keras.Model:
        inputs = keras.Input((IMAGE, IMAGE, 3))
        x = layers.Conv2D(width, patch, strides=patch)(inputs)
        x = layers.Reshape(((IMAGE // patch) ** 2, width))(x)
        x = Positions()(x)
        for _ in range(depth):
            x = transformer_block(x, width, heads, dropout=0.0, causal=False)
        x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))
        return keras.Model(inputs, layers.Dense(model_source.CLASSES)(x), name=f"vit{width}")

    return build


def decoder(
    compressed: bool, width: int = 384, depth: int = 6, dropout: float = 0.2, context: int = CONTEXT
) -> keras.Model:
    """A GPT-style decoder over characters: 6 layers of width 384, 6 heads, dropout 0.2."""
    inputs = keras.Input((context,), dtype="int32")
    x = layers.Embedding(CHARACTERS, width)(inputs)
    x = layers.Dropout(dropout)(Positions()(x))
    for _ in range(depth):
        x = transformer_block(x, width, heads=6, dropout=dropout, causal=True)
    x = layers.LayerNormalization(epsilon=1e-6)(x)
    return keras.Model(inputs, layers.Dense(CHARACTERS)(x), name="decoder")


def encoded(path: Path) -> np.ndarray:
    """A text as numbers of its characters, in the order of the alphabet it uses."""
    return np.unique(list(path.read_text()), return_inverse=True)[1].astype("int32")


def characters(path: Path | None, batch: int, seed: int = 0) -> tuple[tf.Tensor, tf.Tensor]:
    """Passages of a text, and each one's next characters; random characters without a text."""
    rng = np.random.default_rng(seed)
    text = rng.integers(CHARACTERS, size=100_000, dtype="int32") if path is None else encoded(path)
    starts = rng.integers(len(text) - CONTEXT - 1, size=batch)
    passages = text[starts[:, None] + np.arange(CONTEXT + 1)]
    return tf.constant(passages[:, :-1]), tf.constant(passages[:, 1:])


NETS = {
    "ResNet50": Net(application("ResNet50"), 16, 5, 1.05),
    "ResNet152": Net(application("ResNet152"), 16, 7, 1.05, options={"storage": "rebuild", "codec": "rans"}),
    "VGG16": Net(vgg16, 16, 4, 1.35),
    "DenseNet121": Net(application("DenseNet121"), 16, 6, 1.10),
    "MobileNetV2": Net(application("MobileNetV2"), 32, 4, 1.10),
    "EfficientNetB0": Net(application("EfficientNetB0"), 16, 4, 1.10),
    "ConvNeXtTiny": Net(application("ConvNeXtTiny"), 16, 4, 1.15),
    "ViT-S/16": Net(vit(384, 6), 16, 4, 1.15),
    "decoder": Net(decoder, 16, 4, 1.15, text=True),
}

ct.register_rule(Positions)(ct.rules.Passive())
