"""What the memory tools say of a model whose head runs by tiles of rows."""

import functools

import numpy as np
import pytest
from models import layers
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.memory import explain, saved

SAMPLES, STEPS, WORDS, WIDTH = 8, 64, 8192, 32
LOGITS = 4 * SAMPLES * STEPS * WORDS
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, WORDS, (SAMPLES, STEPS))


def language_model(compress, jit=False):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((STEPS,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(x)
    x = x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="gelu")(layers.LayerNormalization()(x)))
    model = keras.Model(inputs, layers.Dense(WORDS, name="head")(layers.LayerNormalization()(x)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"], jit_compile=jit)
    if compress:
        ct.compress_model(model)
    return model


@functools.lru_cache
def peak(compress, jit):
    model = language_model(compress, jit)
    if jit:  # planned: XLA asks for one piece, which the allocator rounds up
        return ct.memory.memory_analysis(model, TOKENS, TOKENS).temporary_bytes
    return ct.memory.measure_step(model, TOKENS, TOKENS).peak_bytes


@pytest.mark.long("XLA")
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_the_peak_is_far_below_that_of_whole_logits(jit):
    # Two tiles: half of each wide tensor. How many copies of the logits plain training has under XLA is the
    # compiler's choice for this machine.
    assert peak(True, jit) < 0.6 * peak(False, jit) and peak(False, jit) > 2 * LOGITS


def test_nothing_wide_is_saved():
    model = language_model(compress=True)
    tensors = saved.saved_tensors(model, *ct.memory.batches.batch_of(model, TOKENS, TOKENS))
    assert tensors and all(tensor.value_bytes < LOGITS / 4 for tensor in tensors)
    (row,) = [row for row in ct.report(model).rows if row.storage == "tile"]
    assert row.layer.startswith(model.name) and "head" in row.layer and row.predicted_bytes == 0


def test_an_explanation_names_the_tiles():
    found = ct.memory.explain_peak(language_model(compress=True), TOKENS, TOKENS)
    tiles = [row for row in found.rows if row.kind == explain.TILE]
    assert tiles and all("head" in row.op for row in tiles)
    assert max(row.bytes for row in found.rows) < LOGITS


def test_losses_and_accuracy_are_plains():
    def history(compress):
        model = language_model(compress)
        return model.fit(TOKENS, TOKENS, batch_size=SAMPLES, epochs=3, shuffle=False, verbose=0).history

    ours, plain = history(True), history(False)
    np.testing.assert_allclose(ours["loss"], plain["loss"], rtol=1e-3)
    np.testing.assert_allclose(ours["accuracy"], plain["accuracy"], atol=0.01)
