"""The networks of the accuracy benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tensorflow import keras

layers = keras.layers

Shape = tuple[int, int, int]
COLOUR, GREY = (32, 32, 3), (28, 28, 1)  # CIFAR-10, Fashion-MNIST


def _convolution(x, filters, size=3, strides=1):
    x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9)(x)


def resnet(depth: int, shape: Shape = COLOUR, strides: int = 1, classes: int = 10) -> keras.Model:
    """The CIFAR ResNet of He et al. (2016) with projection shortcuts; depth = 6 n + 2; strides: of the first layer."""
    x = inputs = keras.Input(shape)
    x = layers.ReLU()(_convolution(x, 16, strides=strides))
    for filters in (16, 32, 64):
        for block in range((depth - 2) // 6):
            strides = 2 if filters > 16 and block == 0 else 1
            shortcut = _convolution(x, filters, 1, strides) if strides > 1 else x
            x = layers.ReLU()(_convolution(x, filters, strides=strides))
            x = layers.ReLU()(layers.Add()([_convolution(x, filters), shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(classes)(x), name=f"resnet{depth}")


def vgg(width: int, classes: int = 10) -> keras.Model:
    """Three stages of two 3 x 3 convolutions with batch normalization, and two dense layers."""
    x = inputs = keras.Input((32, 32, 3))
    for filters in (width, 2 * width, 4 * width):
        for _ in range(2):
            x = layers.ReLU()(_convolution(x, filters))
        x = layers.MaxPooling2D()(x)
    x = layers.Dense(8 * width, activation="relu")(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(classes)(x), name=f"vgg_{width}")


def cnn(width: int, shape: Shape = GREY, classes: int = 10) -> keras.Model:
    """Two convolutions with max pooling and two dense layers, without normalization."""
    x = inputs = keras.Input(shape)
    for filters in (width, 2 * width):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dense(4 * width, activation="relu")(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(classes)(x), name=f"cnn_{width}")


def cnn3(width: int, shape: Shape, classes: int = 10) -> keras.Model:
    """Three convolutions with max pooling and the mean over positions, without normalization."""
    x = inputs = keras.Input(shape)
    for filters in (width, 2 * width, 4 * width):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(classes)(x), name=f"cnn3_{width}")


def decoder(width: int, depth: int, context: int, dropout: float) -> keras.Model:
    """The character decoder of the other benchmarks."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
    import nets

    return nets.decoder(False, width, depth, dropout, context)


BUILDERS: dict[str, Callable[..., keras.Model]] = {
    "resnet14": lambda: resnet(14),
    "resnet20": lambda: resnet(20),
    "resnet20-grey": lambda: resnet(20, GREY, strides=2),
    "vgg_small": lambda: vgg(16),
    "vgg": lambda: vgg(64),
    "cnn": lambda: cnn(32),
    "resnet8-grey": lambda: resnet(8, GREY, strides=2),
    "resnet8-colour": lambda: resnet(8, COLOUR, strides=2),
    "cnn3-grey": lambda: cnn3(16, GREY),
    "cnn3-colour": lambda: cnn3(16, COLOUR),
    "decoder": lambda: decoder(96, 3, 64, 0.1),
}
