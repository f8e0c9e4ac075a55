"""The peak of training a model whose attention runs by tiles of matrices."""

import functools

import numpy as np
import pytest
from models import layers
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.memory import saved

SAMPLES, STEPS, HEADS, SIZE, TRAINED = 8, 384, 4, 8, 12
SCORES = 4 * SAMPLES * HEADS * STEPS**2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(SAMPLES, STEPS, HEADS * SIZE)).astype("float32")


def attention_model(compress, dropout=0.0, jit=False):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input(X.shape[1:])
    for _ in range(2):
        x = x + layers.MultiHeadAttention(HEADS, SIZE, dropout=dropout)(x, x)
    model = keras.Model(inputs, layers.Dense(HEADS * SIZE)(x))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit)
    if compress:
        ct.compress_model(model, check=False)
    return model


@functools.lru_cache
def peak(compress, dropout, jit):
    """The highest of some steps; under XLA what is planned, without the allocator's rounding."""
    model = attention_model(compress, dropout, jit)
    if jit:
        return ct.memory.memory_analysis(model, X, X).temporary_bytes
    model.fit(np.repeat(X, TRAINED, 0), np.repeat(X, TRAINED, 0), SAMPLES, verbose=0)
    return ct.memory.measure_step(model, X, X).peak_bytes


@pytest.mark.long(but=["0.1-True"])
@pytest.mark.parametrize("dropout, jit", [(0.0, False), (0.1, False), (0.0, True), (0.1, True)])
def test_the_peak_is_far_below_that_of_whole_scores(dropout, jit):
    # A tile is nearly half of the scores, and a few tensors are alive in it.
    assert peak(True, dropout, jit) < 2 * SCORES < 0.8 * peak(False, dropout, jit)


@pytest.mark.long("0.0")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_no_scores_are_saved(dropout):
    model = attention_model(compress=True, dropout=dropout)
    tensors = saved.saved_tensors(model, *ct.memory.batches.batch_of(model, X, X))
    assert tensors and all(tensor.value_bytes < SCORES / 8 for tensor in tensors)
    assert sum(row.storage == "tile" for row in ct.report(model).rows) == 2
