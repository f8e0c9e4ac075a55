"""Sums of gradients over samples, within products and before they are added to each other; signs as comparisons."""

import numpy as np
import pytest
import tensorflow as tf
import tiled_steps
from steps import Weights, compressed_gradients, plain_gradients
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.graph.passes import equivalents

BATCH, WIDTH = 16, 64
SHARED = 3


def loss(x, kernel, shared):
    """A tensor of the batch's size, of a weight and the batch, that all layers add."""
    bias = shared + tf.zeros_like(x)
    for _ in range(SHARED):
        x = tf.tanh(tf.matmul(x, kernel) + bias)
    return tf.reduce_mean(tf.sin(x) * tf.range(1.0 * WIDTH))


def run(jit=False, **how):
    x = np.random.default_rng(0).normal(size=(BATCH, WIDTH, WIDTH)).astype("float32")
    shapes = [[WIDTH, WIDTH], [1, WIDTH, WIDTH]]
    return tiled_steps.run(loss, x, shapes, [None, WIDTH, WIDTH], jit, **how)


def added(function):
    """Shapes of what is added up of an addend for each layer."""
    whole = tiled_steps.made_whole(function)
    return [
        tensor.shape.as_list()
        for tensor in whole
        if tensor.op.type == "AddN" and len(tensor.op.inputs) == SHARED and tensor.shape.rank == 3
    ]


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_sums_come_before_the_addition(jit):
    plain, found, function, _ = run(jit, error_bound=1e-4)
    assert added(function) == [[1, WIDTH, WIDTH]]
    tiled_steps.assert_same(plain, found, 0.05 if jit else 1e-3)


def test_where_bits_are_asked_for_the_order_stays():
    plain, found, function, _ = run(codec="zvc")
    assert added(function) == [[None, WIDTH, WIDTH]]
    tiled_steps.assert_same(plain, found)


def by_relation(x, kernel, kernels):
    """Products with one matrix for all samples, and with one for each of four groups of rows."""
    x = tf.tanh(tf.matmul(x, kernel))
    groups = tf.reshape(x, [-1, 4, WIDTH // 4, WIDTH])
    return tf.reduce_mean(tf.sin(tf.matmul(groups, kernels)) * tf.range(1.0 * WIDTH))


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_a_matrix_for_all_samples_has_no_gradient_of_each(jit):
    x = np.random.default_rng(0).normal(size=(BATCH, WIDTH, WIDTH)).astype("float32")
    shapes = [[WIDTH, WIDTH], [4, WIDTH, WIDTH]]
    plain, found, function, _ = tiled_steps.run(
        by_relation, x, shapes, [None, WIDTH, WIDTH], jit, error_bound=1e-4
    )
    tiled_steps.assert_same(plain, found, 0.05 if jit else 1e-3)
    of_matrices = {
        tuple(tensor.shape)
        for tensor in tiled_steps.made_whole(function)
        if "gradient_tape" in tensor.op.name and tensor.shape[-2:] == [WIDTH, WIDTH]
    }
    assert (None, 4, WIDTH, WIDTH) not in of_matrices


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_a_complex_matrix_is_conjugated(jit):
    def loss(x, real, imaginary):
        x = tf.matmul(tf.complex(tf.tanh(x), tf.sin(x)), tf.complex(real, imaginary))
        return tf.reduce_mean(tf.square(tf.abs(x)) * tf.range(1.0 * WIDTH))

    x = np.random.default_rng(0).normal(size=(BATCH, WIDTH, WIDTH)).astype("float32")
    shapes = [[WIDTH, WIDTH], [WIDTH, WIDTH]]
    plain, found, _, _ = tiled_steps.run(loss, x, shapes, [None, WIDTH, WIDTH], jit, error_bound=1e-4)
    tiled_steps.assert_same(plain, found, 0.05 if jit else 1e-3)


def distance(x, kernel):
    """Of what a mean absolute error has a gradient by, with zeros in it."""
    return tf.reduce_mean(tf.abs(tf.matmul(x, kernel)) * tf.range(1.0 * WIDTH))


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("how", [{}, {"storage": "keep"}], ids=["default", "keep"])
def test_a_sign_has_no_error(how, jit):
    x = np.random.default_rng(0).normal(size=(BATCH, WIDTH, WIDTH)).astype("float32")
    x[0] = 0
    plain, found, _, crossings = tiled_steps.run(
        distance, x, [[WIDTH, WIDTH]], [None, WIDTH, WIDTH], jit, **how
    )
    tiled_steps.assert_same(plain, found)
    assert ["Sign" in crossing.name for crossing in crossings] == ([] if how else [True, True])
    assert all(crossing.storage == "bitmask" for crossing in crossings)


IDENTITIES = {
    "square": lambda similar: tf.eye(similar.shape[0]),
    "sizes of a run": lambda similar: tf.eye(tf.shape(similar)[0], tf.shape(similar)[1]),
    "wide": lambda similar: tf.eye(similar.shape[0], 2 * similar.shape[0])[:, : similar.shape[1]],
}


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
def test_labels_of_an_in_batch_softmax_are_made_row_by_row(identity, jit):
    def contrast(x, first, second):
        similar = tf.matmul(tf.matmul(x, first), tf.matmul(x, second), transpose_b=True)
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(identity(similar), similar))

    x = tf.random.stateless_normal((1024, 32), (0, 1)) / 8
    found = compressed_gradients(contrast, x, Weights([32, 32], [32, 32]), {"jit_compile": jit})
    made = [op for op in found.graph.get_operations() if op.type.startswith("Matrix") and "Diag" in op.type]
    assert made and not any(op.outputs[0].consumers() for op in made)
    for ours, plain in zip(found.gradients, plain_gradients(contrast, x, Weights([32, 32], [32, 32]))):
        assert np.linalg.norm(ours - plain) <= 0.02 * np.linalg.norm(plain)


def test_other_diagonals_stay():
    def loss(x, kernel):
        scaled = tf.matmul(tf.linalg.diag(2.0 * tf.ones(256)), tf.matmul(x, kernel))
        return tf.reduce_mean(tf.square(scaled + tf.matmul(tf.eye(256) + tf.eye(256)[::-1], scaled)))

    x = tf.random.stateless_normal((256, 32), (0, 1))
    found = compressed_gradients(loss, x, Weights([32, 32]), codec="zvc")
    assert [len(op.outputs[0].consumers()) > 0 for op in found.graph.get_operations() if op.type == "MatrixDiagV3"] == [
        True, False, False
    ]  # fmt: skip
    (plain,) = plain_gradients(loss, x, Weights([32, 32]))
    np.testing.assert_allclose(found.gradients[0], plain, rtol=1e-4)


RESIZINGS = {
    "tf.image": lambda x, size: tf.image.resize(x, size),
    "corners": lambda x, size: tf.raw_ops.ResizeBilinear(images=x, size=size, align_corners=True),
    "legacy": lambda x, size: tf.raw_ops.ResizeBilinear(images=x, size=size),
}


@pytest.mark.parametrize("size", [[13, 9], [5, 7], [1, 12]], ids=str)
@pytest.mark.parametrize("resize", RESIZINGS.values(), ids=RESIZINGS)
def test_under_xla_a_resizing_is_two_products(resize, size):
    def loss(x, first, second):
        y = resize(tf.nn.conv2d(x, first, 1, "SAME"), size)
        return tf.reduce_mean(tf.square(tf.nn.conv2d(y, second, 1, "SAME")))

    x, shapes = tf.random.stateless_normal((4, 12, 8, 2), (0, 1)), ([1, 1, 2, 3], [1, 1, 3, 2])
    found = compressed_gradients(loss, x, Weights(*shapes), {"jit_compile": True})
    made = [op for op in found.graph.get_operations() if op.type.startswith("ResizeBilinear")]
    assert len(made) == 2 and not any(op.outputs[0].consumers() for op in made)
    for ours, plain in zip(found.gradients, plain_gradients(loss, x, Weights(*shapes))):
        assert np.linalg.norm(ours - plain) <= 0.03 * np.linalg.norm(plain)


@pytest.mark.parametrize("resize", RESIZINGS.values(), ids=RESIZINGS)
def test_weights_of_neighbours_are_those_of_the_resizing(resize):
    x = tf.random.stateless_normal((2, 12, 8, 3), (0, 1))
    for rows, columns in ([36, 24], [13, 9], [5, 7], [1, 12]):
        with tf.Graph().as_default():
            op = resize(tf.compat.v1.placeholder(tf.float32, x.shape), [rows, columns]).op
            first, second = (equivalents._interpolation(op, *sizes) for sizes in ((12, rows), (8, columns)))
        products = np.einsum("ph,bhwc,qw->bpqc", first, x, second)
        np.testing.assert_allclose(products, resize(x, [rows, columns]), rtol=1e-4, atol=1e-5)


def test_a_resizing_takes_no_more_than_its_images():
    def planned(**how):
        keras.utils.set_random_seed(0)
        layers = [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(2)]
        model = keras.Sequential(
            [keras.Input((32, 32, 3)), *layers, keras.layers.UpSampling2D(4, interpolation="bilinear")]
        )
        model.compile("sgd", "mse", jit_compile=True)
        if how:
            ct.compress_model(model, **how)
        return ct.memory.memory_analysis(model, tf.zeros((4, 32, 32, 3)), tf.zeros((4, 128, 128, 16)))

    resized = 4 * 4 * 128 * 128 * 16  # bytes
    assert planned().temporary_bytes > 5 * resized
    assert planned(storage="keep").temporary_bytes > 5 * resized
    assert planned(error_bound=0.1).temporary_bytes < 3.5 * resized
