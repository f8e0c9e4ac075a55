"""A head quantized by Keras, with LoRA, runs by tiles: gradients are plain Keras', nothing wide is whole."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.graph.tiles import limits

SAMPLES, STEPS, WIDTH, WORDS = 4, 32, 16, 512


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(limits, "LEAST_BYTES", 1 << 16)
    monkeypatch.setattr(limits, "TILE_BYTES", 1 << 16)


def model_with(head, mode):
    keras.utils.set_random_seed(0)
    tokens = keras.Input((STEPS,), dtype="int32")
    embedding = keras.layers.ReversibleEmbedding(WORDS, WIDTH)
    hidden = keras.layers.Dense(WIDTH, activation="gelu", name="hidden")(embedding(tokens))
    if head == "tied":
        made, logits = embedding, embedding(hidden, reverse=True)
    else:
        made = keras.layers.Dense(WORDS)
        logits = made(hidden)
    made.quantize(mode)
    if mode != "float8":
        made.enable_lora(4)
        for weight in made.trainable_variables:  # LoRA begins with zeros, which have no gradient beyond them
            weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    return keras.Model(tokens, logits)


def step_of(model, jit):
    @tf.function(jit_compile=jit)
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, model(x, training=True))
        gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    return step


def has_words_of_several_rows(tensor):
    return tensor.shape.rank and tensor.shape[-1] == WORDS and tensor.shape[:-1].num_elements() >= STEPS


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "xla"])
@pytest.mark.parametrize(
    "head, mode",
    [("dense", "int8"), ("dense", "int4"), ("dense", "float8"), ("tied", "int8"), ("tied", "int4")],
)
def test_a_quantized_head_runs_by_tiles(head, mode, jit):
    random = np.random.default_rng(0)
    x, y = (tf.constant(random.integers(0, WORDS, (SAMPLES, STEPS))) for _ in range(2))
    plain = step_of(model_with(head, mode), jit)(x, y)
    model = model_with(head, mode)
    ct.compress_model(model, storage={"hidden": "keep"})
    step = step_of(model, jit)
    for gradient, expected in zip(step(x, y), plain, strict=True):
        assert np.linalg.norm(expected) > 0
        assert np.linalg.norm(gradient - expected) <= 1e-5 * np.linalg.norm(expected)
    live, waiting = {}, list(step.get_concrete_function(x, y).outputs)
    while waiting:
        op = waiting.pop().op
        if op.name not in live:
            live[op.name] = op
            waiting += op.inputs
    wide = [t.name for op in live.values() for t in op.outputs if has_words_of_several_rows(t)]
    assert not wide
