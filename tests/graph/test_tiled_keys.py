"""Tiles of queries leave out keys that none of them sees: those are not read, and results are the same."""

import numpy as np
import pytest
import tensorflow as tf
import tiled_steps
from tensorflow import keras
from tiled_steps import assert_same

import tf_comptrain as ct
from tf_comptrain.graph.tiles import limits

SAMPLES, STEPS, HEADS, SIZE = 2, 64, 4, 8
WIDTH = HEADS * SIZE
UNSEEN = 16  # the last keys, of all samples


@pytest.fixture(autouse=True)
def tiles_of_queries(monkeypatch):
    monkeypatch.setattr(limits, "LEAST_BYTES", 1 << 15)
    monkeypatch.setattr(limits, "TILE_BYTES", 1 << 13)


def there():
    return tf.range(STEPS) < STEPS - UNSEEN


def causal():
    return tf.range(STEPS)[:, None] >= tf.range(STEPS)


def window():
    """Of the keys before, the last 10."""
    return tf.logical_and(causal(), tf.range(STEPS)[:, None] - 10 < tf.range(STEPS))


def chosen(scores, seen):
    """As Keras does: a query that sees no key has zeros."""
    seen = tf.logical_and(tf.ones(tf.shape(scores), tf.bool), seen)
    p = tf.nn.softmax(tf.where(seen, scores, -1e9))
    return tf.where(seen, p, tf.zeros_like(p))


def added(scores, seen):
    return tf.nn.softmax(scores + (1 - tf.cast(seen, scores.dtype)) * -1e9)


def scaled_and_added(scores, seen):
    bias = tf.where(seen, tf.zeros([STEPS, STEPS]), tf.fill([STEPS, STEPS], -1e9))
    return tf.nn.softmax(tf.where(seen, scores / 3.0 + bias, -np.inf))


MASKS = {"causal": causal, "window": window}
WAYS = {each.__name__: each for each in (chosen, added, scaled_and_added)}


def network(way, mask, values=lambda v: v, first=0):
    """A mean over queries from one on."""

    def run(x, *weights):
        with tf.name_scope("held/parts"):
            q, k, v = (tf.reshape(tf.matmul(x, w), [-1, STEPS, HEADS, SIZE]) for w in weights[:3])
        p = way(tf.einsum("btnh,bsnh->bnts", q, k), mask())
        made = tf.einsum("bnts,bsnh->btnh", p, values(v))[:, first:]
        with tf.name_scope("held/rest"):
            made = tf.matmul(tf.reshape(made, [-1, STEPS - first, WIDTH]), weights[3])
            return tf.reduce_mean(tf.sin(made) * tf.range(1.0 * WIDTH) / WIDTH)

    return run


def run(loss, jit):
    x = tf.constant(np.random.default_rng(0).normal(size=(SAMPLES, STEPS, WIDTH)), tf.float32)
    how = {"storage": {"held/parts": "keep", "held/rest": "keep"}} if jit else {"codec": "zvc"}
    return tiled_steps.run(loss, x, [[WIDTH, WIDTH]] * 4, [None, STEPS, WIDTH], jit, **how)


@pytest.mark.long(but=["chosen-window-XLA", "added-causal-executor", "scaled_and_added-window-executor"])
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("way", WAYS)
def test_loss_and_gradients_are_plains(way, mask, jit):
    plain, tiled, _, crossings = run(network(WAYS[way], MASKS[mask]), jit)
    assert_same(plain, tiled)
    assert "tile" in [crossing.storage for crossing in crossings]


def only_there(mask):
    return lambda: tf.logical_and(mask(), there())


def unseen_are_nan(v):
    """Zero times it is not zero: a product over all keys is not a number."""
    return v + tf.where(there(), 0.0, np.nan)[:, None, None]


@pytest.mark.long(but=["chosen-executor"])
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("way", ["chosen", "added"])
def test_keys_that_no_query_sees_are_not_read(way, jit):
    first = 0 if way == "chosen" else 1
    _, ours, _, _ = run(network(WAYS[way], only_there(causal), unseen_are_nan, first), jit)
    plain, _, _, _ = run(network(WAYS[way], only_there(causal), first=first), jit)
    assert_same(plain, ours)


@pytest.mark.parametrize(
    "way, mask",
    [
        (lambda scores, seen: tf.where(seen, tf.nn.softmax(scores), 0.0), causal),  # all are in its sum
        (lambda scores, seen: tf.nn.softmax(tf.where(seen, scores, -1.0)), causal),  # some weight is left
        (lambda scores, seen: tf.nn.log_softmax(tf.where(seen, scores, -1e9)), causal),
    ],
    ids=["softmax_of_all", "low_scores", "logarithms"],
)
def test_keys_that_matter_are_read(way, mask):
    plain, tiled, _, _ = run(network(way, mask), jit=False)
    assert_same(plain, tiled)


def test_a_query_that_sees_no_key_reads_all():
    """Of Keras' own attention, on samples whose first tokens are padding: it has the mean of all values."""
    x = np.random.default_rng(0).normal(size=(SAMPLES, STEPS, WIDTH)).astype("float32")
    is_text = np.arange(STEPS)[None] >= np.array([[0], [40]])
    found = []
    for least in (1 << 15, 1 << 40):
        limits.LEAST_BYTES = least  # undone by the fixture
        found.append(_losses(x, is_text))
    np.testing.assert_allclose(*found, rtol=1e-6)


def _losses(x, is_text):
    keras.utils.set_random_seed(0)
    inputs, mask = keras.Input((STEPS, WIDTH)), keras.Input((STEPS,), dtype="bool")
    made = keras.layers.MultiHeadAttention(HEADS, SIZE)(
        inputs, inputs, attention_mask=mask[:, None, :], use_causal_mask=True
    )
    model = keras.Model([inputs, mask], keras.layers.Dense(WIDTH)(made))
    model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=False)
    ct.compress_model(model, check=False, codec="zvc")
    return [model.train_on_batch((x, is_text), x[..., ::-1]) for _ in range(4)]
