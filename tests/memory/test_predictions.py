"""What a report predicts that a step holds, beside what the step holds."""

import numpy as np
import pytest
from models import compiled, layers
from tensorflow import keras

import tf_comptrain as ct

WORDS, LENGTH, WIDTH = 300, 32, 64
RNG = np.random.default_rng(0)


def transformer():
    x = inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(x)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, WIDTH // 4)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(y)
    model = keras.Model(inputs, layers.Dense(WORDS)(layers.LayerNormalization()(x)))
    words = RNG.integers(0, WORDS, (16, LENGTH + 1)).astype("int32")
    return model, words[:, :-1], words[:, 1:]


def normalized_cnn():
    x = inputs = keras.Input((32, 32, 3))
    for filters in (32, 64):
        x = layers.Conv2D(filters, 3, padding="same")(x)
        x = layers.MaxPooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    return model, RNG.normal(size=(16, 32, 32, 3)).astype("float32"), RNG.integers(0, 10, 16)


def mlp():
    x = inputs = keras.Input((256,))
    for width in (512, 512, 256):
        x = layers.Dense(width, activation="relu")(x)
    return (
        keras.Model(inputs, layers.Dense(10)(x)),
        RNG.normal(size=(128, 256)).astype("float32"),
        RNG.integers(0, 10, 128),
    )


@pytest.mark.long("transformer")
@pytest.mark.parametrize("made", [transformer, normalized_cnn, mlp])
def test_what_is_predicted_is_held(made):
    keras.utils.set_random_seed(0)
    model, x, y = made()
    compiled(model, jit_compile=False)
    report = ct.compress_model(model)
    model.train_on_batch(x, y)
    predicted = sum(row.predicted_bytes for row in report.rows if row.storage != "keep") * len(x)
    found = ct.memory.report(model, x, y, timeline=False)
    held = sum(row.bytes for row in found.rows if row.storage != "keep")
    assert 0.9 < predicted / held < 1.1
    assert 0.9 < found.predicted_bytes / found.saved_bytes < 1.1


@pytest.mark.parametrize("bound", [0.02, 0.1, 0.2])
def test_bits_follow_the_bound(bound):
    keras.utils.set_random_seed(0)
    model, x, y = mlp()
    compiled(model, jit_compile=False)
    ct.compress_model(model, error_bound=bound)
    model.train_on_batch(x, y)
    found = ct.memory.report(model, x, y, timeline=False)
    assert 0.85 < found.predicted_bytes / sum(row.bytes for row in found.rows if row.storage != "keep") < 1.15


def test_the_loss_of_a_sequence_has_a_row_for_each_step():
    model, x, y = transformer()
    compiled(model, jit_compile=False)
    report = ct.compress_model(model)
    model.train_on_batch(x, y)
    (loss,) = (row for row in report.rows if "SparseSoftmax" in row.layer)
    assert loss.value_bytes == LENGTH * WORDS * 4 and loss.storage == "keep"
