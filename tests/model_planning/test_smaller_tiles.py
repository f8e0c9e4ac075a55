"""Plans whose tiles of wide layers are smaller than usual: for limits that no other plan of the whole batch keeps."""

from typing import NamedTuple

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

BATCH, STEPS, WIDTH, HEADS = 8, 256, 32, 4
SCORES_BYTES = 4 * BATCH * HEADS * STEPS * STEPS


def attentive(**how):
    """Scores of 8 MB, which run by tiles of less under smaller sizes alone."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((STEPS, WIDTH), name="inputs")
    x = inputs + keras.layers.MultiHeadAttention(HEADS, 8)(inputs, inputs)
    return compiled(keras.Model(inputs, keras.layers.Dense(10)(x), name="attentive"), **how)


def planned(model, memory):
    return ct.plan(model, BATCH, memory, microbatches=False, offload=False, budget_s=1.0)


@pytest.fixture(scope="module")
def usual():
    """A plan that keeps everything."""
    return planned(attentive(jit_compile=True), "1GB")


@pytest.mark.long
@pytest.mark.parametrize("jit", [pytest.param(True, marks=needs_xla), False])
def test_a_limit_that_only_smaller_tiles_keep(jit):
    model = attentive(jit_compile=jit)
    smallest = planned(model, 1000)
    assert not smallest.feasible and smallest.smaller_tiles > 1
    halfway = (smallest.smallest_bytes + smallest.kept_peak_bytes) // 2  # the executor's are measured
    plan = planned(model, smallest.smallest_bytes if jit else halfway)
    assert plan.feasible and plan.smaller_tiles == smallest.smaller_tiles
    assert plan.kept_peak_bytes > plan.peak_bytes + 2 * SCORES_BYTES // 3
    assert "of their usual size" in str(plan)
    assert ModelPlan.from_json(plan.to_json()) == plan
    plan.apply(model)
    assert compressed_models[model].held.wishes.smaller_tiles == plan.smaller_tiles
    if jit:
        assert ct.memory.memory_analysis(model, BATCH).total_bytes == plan.peak_bytes


@pytest.mark.parametrize("smallest", [90, 110])
@pytest.mark.parametrize("is_wide", [True, False])
@needs_xla
def test_smaller_tiles_come_after_usual_ones(is_wide, smallest, usual, monkeypatch):
    """Only where there are wide layers, and only where they take less; beside what the usual step takes."""
    usual = usual._replace(feasible=False, smallest_bytes=100)
    asked = []

    def plan_of_step(model, batch, limit, wanted, smaller_tiles=1):
        asked.append(smaller_tiles)
        found = usual if smaller_tiles == 1 else usual._replace(smallest_bytes=smallest, kept_peak_bytes=1)
        return found._replace(smaller_tiles=smaller_tiles), Prepared(is_wide)

    monkeypatch.setattr(planning, "_plan_of_step", plan_of_step)
    plan = planned(attentive(jit_compile=True), 1000)
    assert asked == ([1, planning.SMALLER_TILES] if is_wide else [1])
    assert (plan.smaller_tiles > 1) == (is_wide and smallest < 100)
    assert plan.kept_peak_bytes == usual.kept_peak_bytes


class Prepared(NamedTuple):
    """What was measured of a step, as far as it is asked here."""

    has_wide_products: bool

    def parts(self, limit):
        return None


@needs_xla
def test_a_plan_with_tiles_of_no_size_is_refused(usual):
    assert usual.smaller_tiles == 1 and ModelPlan.from_json(usual.to_json()) == usual
    with pytest.raises(ValueError, match="smaller_tiles"):
        ModelPlan.from_json(usual._replace(smaller_tiles=0).to_json())


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
