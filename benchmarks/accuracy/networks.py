"""The networks of the study."""

from __future__ import annotations

from collections.abc import Callable

from tensorflow import keras

layers = keras.layers


def _convolution(x, filters, size=3, strides=1):
    x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9)(x)


def resnet(depth: int, classes: int = 10) -> keras.Model:
    """The CIFAR ResNet of He et al. (2016) with projection shortcuts; depth = 6 n + 2."""
    x = inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(_convolution(x, 16))
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


def cnn(width: int, classes: int = 10) -> keras.Model:
    """Two convolutions with max pooling and two dense layers, without normalization; 28 x 28 grey."""
    x = inputs = keras.Input((28, 28, 1))
    for filters in (width, 2 * width):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dense(4 * width, activation="relu")(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(classes)(x), name=f"cnn_{width}")


BUILDERS: dict[str, Callable[[], keras.Model]] = {
    "resnet14": lambda: resnet(14),
    "resnet20": lambda: resnet(20),
    "vgg_small": lambda: vgg(16),
    "vgg": lambda: vgg(64),
    "cnn": lambda: cnn(32),
}
