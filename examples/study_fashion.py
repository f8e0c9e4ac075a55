"""What compression does to a small network on Fashion-MNIST: the file that a study takes.

tf-comptrain study examples/study_fashion.py
"""

from pathlib import Path

import demo_data
from tensorflow import keras

layers = keras.layers

# Arguments of tf_comptrain.impact_study; the command line's come before them.
STUDY = {"codecs": ["plane", "rans", "zvc"], "bounds": (0.1, 0.2, 0.4), "seeds": (0, 1), "epochs": 2}


def build():
    """The network, compiled: a convolution with normalization, another without, a dense layer."""
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"], jit_compile=False)
    return model


def data():
    """((x, y), (x_validation, y_validation))"""
    images = demo_data.load(Path("demo_out"), train=2000, test=1000, offline=True)
    return (images.x, images.y), (images.x_test, images.y_test)
