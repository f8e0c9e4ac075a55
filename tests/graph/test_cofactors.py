"""Formulas in which an error would meet a factor without bound read exact values; others are held as before."""

import numpy as np
import pytest
import tensorflow as tf
from steps import Weights, compressed_gradients, plain_gradients

RNG = np.random.default_rng(0)
X = tf.constant(RNG.normal(size=(8, 12, 12, 8)), tf.float32)
WIDE = tf.constant(RNG.normal(size=(8, 12, 64)), tf.float32)
TARGET = tf.range(64.0) * 0.1


def gram(y):
    return tf.matmul(y, y, transpose_a=True) + 0.01 * tf.eye(y.shape[-1])


def shares(y):
    return y / tf.reduce_sum(y, -1, True)


UNBOUNDED = {
    "qr": lambda y: tf.linalg.qr(y)[0],
    "svd": lambda y: tf.linalg.svd(y)[1],
    "eigh": lambda y: tf.linalg.eigh(gram(y))[1],
    "inverse": lambda y: tf.linalg.inv(gram(y)),
    "solve": lambda y: tf.linalg.solve(gram(y), tf.linalg.matrix_transpose(y)),
    "least_squares": lambda y: tf.linalg.lstsq(y, tf.sin(y)),
    "determinant": lambda y: tf.linalg.det(0.1 * gram(y))[..., None],
    "log_determinant": lambda y: tf.linalg.logdet(gram(y))[..., None],
    "pseudo_inverse": tf.linalg.pinv,
    "cholesky": lambda y: tf.linalg.cholesky(gram(y)),
    "no_nan": lambda y: tf.math.divide_no_nan(tf.sin(y), tf.nn.relu(y)),
    "over_itself": lambda y: y / (tf.abs(y) + 1e-2),
    "two_channels": lambda y: y[..., :2] * tf.math.rsqrt(tf.reduce_mean(y[..., :2] ** 2, -1, True) + 1e-6),
    "two_in_a_product": lambda y: y[..., 2:4] * y[..., :2] / tf.norm(y[..., :2], axis=-1, keepdims=True),
    "length_of_rectified": lambda y: tf.nn.l2_normalize(tf.nn.relu(tf.tile(y, [1, 1, 1, 4]) - 1.0), -1),
    "negative_power": lambda y: tf.sin(y) * tf.pow(tf.abs(y) + 1e-2, -1.5),
    "logarithm": lambda y: tf.abs(y) * tf.math.log(tf.abs(y) + 1e-3),
    "elsewhere": lambda y: tf.sin(y) + tf.stop_gradient(1.0 / y),
    "in_logarithms": lambda y: tf.math.cumulative_logsumexp(y, -1),
    "largest_values": lambda y: tf.sin(y[..., :4]) * shares(tf.math.top_k(y, 4)[0]),
    "softmax_without_a_shift": lambda y: tf.exp(3.0 * y) / tf.reduce_sum(tf.exp(3.0 * y), -1, True),
}  # fmt: skip
BOUNDED = {
    "layer_norm": lambda y: (y - tf.reduce_mean(y, -1, True))
    * tf.math.rsqrt(tf.math.reduce_variance(y, -1, True) + 1e-6),
    "variance_of_moments": lambda y: y
    * tf.math.rsqrt(tf.reduce_mean(y**2, -1, True) - tf.reduce_mean(y, -1, True) ** 2 + 1e-3),
    "rms_norm": lambda y: y * tf.math.rsqrt(tf.reduce_mean(y * y, -1, True) + 1e-6),
    "batch_norm": lambda y: (y - tf.reduce_mean(y, [0, 1])) / tf.sqrt(tf.math.reduce_variance(y, [0, 1]) + 1e-3),
    "length": lambda y: tf.nn.l2_normalize(y, -1),
    "length_and_more": lambda y: y / (tf.norm(y, axis=-1, keepdims=True) + 1e-3),
    "softmax_by_hand": lambda y: tf.exp(y - tf.reduce_max(y, -1, True))
    / tf.reduce_sum(tf.exp(y - tf.reduce_max(y, -1, True)), -1, True),
    "softmax": lambda y: tf.nn.softmax(y) * y,
    "largest_probabilities": lambda y: y[..., :4] * shares(tf.math.top_k(tf.nn.softmax(y), 4)[0]),
    "constant_divisor": lambda y: tf.sin(y / 0.05 / 20.0),
    "soft_sign": lambda y: y / (1.0 + tf.abs(y)),
    "away_from_zero": lambda y: y / (2.0 + tf.sin(y)),
    "clipped_divisor": lambda y: y / tf.maximum(tf.abs(y), 1.0),
    "by_the_largest": lambda y: tf.sin(y / (127.0 / (tf.reduce_max(tf.abs(y), -1, True) + 1e-6)) / 40.0),
}  # fmt: skip


def followed(made, scale):
    """What the backward pass begins with is kept: more is made behind it."""
    error = tf.square(made - TARGET[: made.shape[-1]])
    return tf.reduce_mean(
        tf.sin(0.1 * tf.tile(error, [1] * (len(made.shape) - 1) + [8])) * tf.reduce_mean(scale)
    )


def run(function, x, **how):
    weights = Weights([x.shape[-1], x.shape[-1]], [4])
    for part, values in zip(weights.parts, (RNG.normal(size=(x.shape[-1],) * 2) * 0.3, np.ones(4))):
        part.assign(values)

    def loss(x, w, scale):
        return followed(function(tf.matmul(x, w)), scale)

    plain = plain_gradients(loss, x, weights, traced=True)  # rounding is magnified too
    found = compressed_gradients(loss, x, weights, **how)
    errors = [np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(found.gradients, plain)]
    return found, max(errors)


@pytest.mark.parametrize("name", UNBOUNDED)
def test_an_error_meets_no_factor_without_bound(name):
    found, error = run(UNBOUNDED[name], X)
    assert error <= 0.02
    assert any("without bound" in row.note for row in found.crossings)


@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_bounded_by_construction_is_compressed(name):
    found, error = run(BOUNDED[name], WIDE)
    assert 0 < error <= 0.15
    assert "compress" in {row.storage for row in found.crossings}


def test_a_lossless_codec_holds_what_meets_such_a_factor():
    found, error = run(UNBOUNDED["inverse"], WIDE[:, :, :16], codec="zvc")
    assert error <= 1e-6
    assert "compress" in {row.storage for row in found.crossings}


def test_only_the_formula_between_products_with_weights_is_exact():
    def loss(x, first, second, third):
        y = tf.nn.gelu(tf.matmul(x, first))
        y = UNBOUNDED["over_itself"](tf.matmul(y, second))
        return followed(tf.nn.gelu(tf.matmul(y, third)), third)

    found = compressed_gradients(loss, WIDE, Weights([64, 64], [64, 64], [64, 64]))
    storages = [row.storage for row in found.crossings if row.note != "small"]
    assert storages.count("compress") >= 2  # what both functions around it read
    assert any("without bound" in row.note for row in found.crossings)


def test_squares_of_the_batch_may_be_zero():
    def loss(x, w):
        return followed(tf.sqrt(tf.matmul(x, w) ** 2 + x**2), w)

    weights = Weights([64, 64])
    plain = plain_gradients(loss, WIDE, weights, traced=True)
    found = compressed_gradients(loss, WIDE, weights)
    assert np.linalg.norm(found.gradients[0] - plain[0]) <= 0.02 * np.linalg.norm(plain[0])


@pytest.mark.parametrize("name", ["two_channels", "over_itself", "logarithm"])
def test_embedded_words_are_activations(name):
    """As the same numbers are that no table is looked up for."""
    words = tf.constant(RNG.integers(0, 20, (32, 16)))
    table = Weights([20, 8], [8, 8])

    def loss(x, rows, w):
        y = tf.nn.relu(tf.matmul(tf.gather(1.0 * rows, x), w) + 0.5)
        return followed(UNBOUNDED[name](y), w)

    plain = plain_gradients(loss, words, table, traced=True)
    found = compressed_gradients(loss, words, table)
    for ours, its in zip(found.gradients, plain):
        assert np.linalg.norm(ours - its) <= 0.02 * np.linalg.norm(its)
    assert any("without bound" in row.note for row in found.crossings)
