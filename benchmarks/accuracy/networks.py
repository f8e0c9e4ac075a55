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


def alexnet(width: int, classes: int = 10) -> keras.Model:
    """AlexNet (Krizhevsky et al., 2012) for 32 px, with dropout and without local response normalization."""
    x = inputs = keras.Input(COLOUR)
    for share, size, pooled in ((1, 5, True), (3, 5, True), (6, 3, False), (4, 3, False), (4, 3, True)):
        x = layers.Conv2D(share * width, size, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(3, 2, padding="same")(x) if pooled else x
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(0.5)(layers.Dense(16 * width, activation="relu")(x))
    return keras.Model(inputs, layers.Dense(classes)(x), name=f"alexnet_{width}")


def vgg16(width: int, classes: int = 10) -> keras.Model:
    """VGG-16 (Simonyan and Zisserman, 2015) for 32 px, with batch normalization and one dense layer."""
    x = inputs = keras.Input(COLOUR)
    for share, count in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
        for _ in range(count):
            x = layers.ReLU()(_convolution(x, share * width))
        x = layers.MaxPooling2D()(x)
    return keras.Model(inputs, layers.Dense(classes)(layers.Flatten()(x)), name=f"vgg16_{width}")


def imagenet_resnet(width: int, blocks: tuple[int, ...], bottleneck: bool, classes: int = 10) -> keras.Model:
    """ResNet-18 and ResNet-50 (He et al., 2016) for 32 px: 3 x 3 at first; blocks: of each stage."""
    x = inputs = keras.Input(COLOUR)
    x = layers.ReLU()(_convolution(x, width))
    for stage, count in enumerate(blocks):
        inner = width << stage
        outer = 4 * inner if bottleneck else inner
        for block in range(count):
            strides = 2 if stage and block == 0 else 1
            shortcut = x if x.shape[-1] == outer and strides == 1 else _convolution(x, outer, 1, strides)
            if bottleneck:
                x = layers.ReLU()(_convolution(x, inner, 1))
                x = layers.ReLU()(_convolution(x, inner, 3, strides))
                x = _convolution(x, outer, 1)
            else:
                x = layers.ReLU()(_convolution(x, inner, 3, strides))
                x = _convolution(x, outer)
            x = layers.ReLU()(layers.Add()([x, shortcut]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(classes)(x))


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


def vit(width: int, depth: int, shape: Shape = GREY, classes: int = 10) -> keras.Model:
    """A vision transformer over patches of 4 by 4 pixels."""
    inputs = keras.Input(shape)
    x = layers.Conv2D(width, 4, 4)(inputs)
    x = layers.Reshape((-1, width))(x)
    for _ in range(depth):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(4, width // 4)(y, y)])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = layers.Add()([x, layers.Dense(width)(y)])
    x = layers.LayerNormalization()(x)
    return keras.Model(inputs, layers.Dense(classes)(layers.GlobalAveragePooling1D()(x)))


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
    "alexnet": lambda: alexnet(16),
    "vgg16": lambda: vgg16(16),
    "resnet18": lambda: imagenet_resnet(16, (2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda: imagenet_resnet(16, (3, 4, 6, 3), bottleneck=True),
    "vit-grey": lambda: vit(64, 8),
    "decoder": lambda: decoder(96, 3, 64, 0.1),
}
