"""Losses of several terms that share a small gradient: what waits for another term comes before that in no step."""

import numpy as np
import pytest
import tensorflow as tf
from steps import Weights, compressed_gradients, plain_gradients

CLASSES = 256
RNG = np.random.default_rng(0)
X = tf.constant(RNG.normal(size=(8, 32, 64)), tf.float32)
LABELS = tf.constant(RNG.integers(CLASSES, size=(8, 32)), tf.int32)
WANTED = tf.constant(RNG.random(size=(8, 32, CLASSES)) > 0.5, tf.float32)


def total(values):
    return tf.reduce_sum(values, [1, 2])


def cross_entropy(z):
    return tf.reduce_mean(tf.reduce_logsumexp(z, -1) - tf.reduce_sum(z * tf.one_hot(LABELS, CLASSES), -1))


def with_a_cost(z):
    costs = tf.reduce_sum(tf.nn.softmax(z) * tf.linspace(0.0, 1.0, CLASSES), -1)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, z) + costs)


def unlikelihood(z):
    others = tf.gather(tf.nn.softmax(z), (LABELS + 1) % CLASSES, batch_dims=2)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, z) - others)


def dice(z):
    found = tf.sigmoid(z)
    return tf.reduce_mean(1 - 2 * total(found * WANTED) / (total(found) + total(WANTED)))


def noise_ratio(z):
    """Scale-invariant, of signals."""
    wanted = WANTED - tf.reduce_mean(WANTED, [1, 2], keepdims=True)
    share = (total(z * wanted) / total(wanted**2))[:, None, None] * wanted
    return -tf.reduce_mean(tf.math.log(total(share**2) / (total((z - share) ** 2) + 1e-3)))


def explained_variance(z):
    centred = z - tf.reduce_mean(z, [1, 2], keepdims=True)
    return tf.reduce_mean(total((z - WANTED) ** 2) / total(centred**2))


LOSSES = {
    f.__name__: f for f in (cross_entropy, with_a_cost, unlikelihood, dice, noise_ratio, explained_variance)
}


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_is_plains(loss):
    def of(x, first, second):
        return LOSSES[loss](tf.matmul(tf.nn.gelu(tf.matmul(x, first)), second))

    model = Weights([64, 64], [64, CLASSES])
    plain = plain_gradients(of, X, model)
    found = compressed_gradients(of, X, model, codec="zvc")
    assert "compress" in [row.storage for row in found.crossings]
    for one, other in zip(plain, found.gradients):
        assert np.linalg.norm(other - one) <= 1e-4 * np.linalg.norm(one)
