"""Plans whose tiles of wide layers are smaller than usual: for limits that no other plan of the whole batch keeps."""

import numpy as np
import pytest
import tensorflow as tf
from models import compiled
from needs_xla import needs_xla
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import compressed_models
from tf_comptrain.model_planning import ModelPlan
from tf_comptrain.model_planning import model as planning

BATCH, STEPS, WIDTH = 8, 256, 32


def attentive(**how):
    """Scores of 8 MB, which run by tiles of less under smaller sizes alone."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((STEPS, WIDTH), name="inputs")
    x = inputs + keras.layers.MultiHeadAttention(4, 8)(inputs, inputs)
    return compiled(keras.Model(inputs, keras.layers.Dense(10)(x), name="attentive"), **how)


def planned(model, memory):
    return ct.plan(model, BATCH, memory, microbatches=False, offload=False, budget_s=1.0)


@pytest.mark.parametrize(
    "jit", [pytest.param(True, marks=needs_xla), pytest.param(False, marks=pytest.mark.long)]
)
def test_a_limit_that_only_smaller_tiles_keep(jit):
    model = attentive(jit_compile=jit)
    smallest = planned(model, 1000)
    assert not smallest.feasible and smallest.smaller_tiles > 1
    plan = planned(model, int(1.1 * smallest.smallest_bytes))
    assert plan.feasible and plan.smaller_tiles == smallest.smaller_tiles
    assert plan.kept_peak_bytes > 1.2 * plan.peak_bytes and "of their usual size" in str(plan)
    assert ModelPlan.from_json(plan.to_json()) == plan
    plan.apply(model)
    assert compressed_models[model].held.wishes.smaller_tiles == plan.smaller_tiles
    if jit:
        assert ct.memory.memory_analysis(model, BATCH).total_bytes == plan.peak_bytes


def test_without_wide_layers_no_second_plan_is_made(monkeypatch):
    model = keras.Sequential([keras.Input((16, 16, 8)), keras.layers.Conv2D(64, 3, activation="relu")])
    compiled(model, jit_compile=False)
    asked = []
    original = planning._plan_of_step
    monkeypatch.setattr(planning, "_plan_of_step", lambda *given: asked.append(given) or original(*given))
    assert not planned(model, 1000).feasible and len(asked) == 1


def test_a_plan_with_tiles_of_no_size_is_refused():
    plan = planned(attentive(jit_compile=True), "1GB")
    assert plan.smaller_tiles == 1
    with pytest.raises(ValueError, match="smaller_tiles"):
        ModelPlan.from_json(plan._replace(smaller_tiles=0).to_json())


def test_gradients_are_those_of_usual_tiles():
    """Attention is exact whatever its tiles are, but for the order in which sums are made."""
    found = []
    x = np.random.default_rng(0).normal(size=(BATCH, STEPS, WIDTH)).astype("float32")
    for smaller in (1, 4, 16):
        model = attentive(jit_compile=False)
        ct.compress_model(model, error_bound=1e-6)
        compressed_models[model].held.wishes.smaller_tiles = smaller

        @tf.function
        def step(x, model=model):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True)))
            return tape.gradient(loss, model.trainable_variables)

        found.append([g.numpy() for g in step(x)])
    for usual, *others in zip(*found):
        for each in others:
            assert np.linalg.norm(each - usual) <= 1e-4 * np.linalg.norm(usual) + 1e-7
