"""The layer that an operation of a traced step is of, by the name that the model has for it."""

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, images
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.layer_names import split_name

layers = keras.layers
NUMBERED = {"conv2d", "conv2d_1", "block", "block/conv2d", "block/conv2d_1"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model_1/conv2d_1/BiasAdd", ("conv2d", "BiasAdd")),
        ("model_1/conv2d_1_2/BiasAdd", ("conv2d_1", "BiasAdd")),
        ("model_1/conv2d_3/BiasAdd", ("conv2d", "BiasAdd")),  # of its second call
        ("model_1/block_1/conv2d_1_2/Relu:1", ("block/conv2d_1", "Relu:1")),
        ("model_1/block_1/while/body/conv2d_1/Conv2D", ("block/conv2d", "Conv2D")),
        ("model_1/block_1/mine/mul", ("block", "mine/mul")),
        ("model_1/mine/mul", ("", "model_1/mine/mul")),
        ("mul", ("", "mul")),
    ],
)
def test_names_of_keras_3(name, expected):
    assert split_name(name, NUMBERED, keras_3=True) == expected


@pytest.mark.parametrize(
    ("name", "path"), [("model/conv2d/BiasAdd", "conv2d"), ("model/conv2d_1/BiasAdd", "conv2d_1")]
)
def test_names_of_keras_2(name, path):
    assert split_name(name, NUMBERED, keras_3=False) == (path, "BiasAdd")


class Block(layers.Layer):
    """A layer with layers inside, and an operation of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = layers.Conv2D(16, 3, name="conv"), layers.Conv2D(16, 3, name="conv_1")

    def call(self, x):
        return tf.tanh(self.second(self.first(x)))


def test_layers_of_a_traced_step_have_the_names_that_their_user_gave_them():
    inner = keras.Sequential([keras.Input((12, 12, 16)), layers.Conv2D(16, 3, name="of_inner")], name="inner")
    x = inputs = keras.Input((16, 16, 3))
    for part in (Block(name="block_1"), inner, Block(name="block"), layers.Flatten(), layers.Dense(10)):
        x = part(x)
    model = compiled(keras.Model(inputs, x, name="outer"), jit_compile=False)
    report = ct.compress_model(model)
    before = [row.path for row in report.rows]
    model.train_on_batch(*images(8))
    assert report.batch_size == 8
    paths = [row.path for row in report.rows]
    assert paths[: len(before)] == before
    for path in ("block_1/conv", "block_1", "inner/of_inner", "block/conv", "block"):
        assert path in paths, paths
    assert all(row.layer.endswith(row.operation) for row in report.rows)


def test_a_path_chooses_a_storage():
    model = compiled(keras.Sequential([keras.Input((16, 16, 3)), Block(name="block"), layers.Flatten()]))
    ct.compress_model(model, storage={"block/conv": "keep"})
    model.compile("sgd", "mse", jit_compile=False)
    model.train_on_batch(np.zeros((4, 16, 16, 3), "float32"), np.zeros((4, 12 * 12 * 16), "float32"))
    storages = {row.path: row.storage for row in ct.report(model).rows}
    assert storages["block/conv"] == "keep"
