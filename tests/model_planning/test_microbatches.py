"""Plans in microbatches: where no step of the whole batch keeps the limit."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.model_planning import ModelPlan
from tf_comptrain.placement import accumulation

layers = keras.layers
BATCH, SIDE = 32, 16
LIMIT = 6_000_000  # the smallest plan of the whole batch takes 9.3 MB under XLA
EXECUTORS_LIMIT = 2_500_000  # and 4.3 MB on the executor, over what other tests have left


def network(jit_compile, norm=False):
    keras.utils.set_random_seed(0)
    parts = [keras.Input((SIDE, SIDE, 3), name="images")]
    for number, width in enumerate((64, 64)):
        parts.append(layers.Conv2D(width, 3, padding="same", name=f"conv{number}"))
        parts += [layers.BatchNormalization(name="norm0")] if norm and number == 0 else []
        parts.append(layers.ReLU(name=f"relu{number}"))
    parts += [layers.GlobalAveragePooling2D(name="pool"), layers.Dense(10, name="dense")]
    model = keras.Sequential(parts, name="network")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=jit_compile)
    return model


def samples(count):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, SIDE, SIDE, 3)).astype("float32"), rng.integers(0, 10, count)


@pytest.fixture(scope="module")
def under_xla():
    return ct.plan(network(True), BATCH, LIMIT)


def test_xla_plans_the_whole_step_within_the_limit(under_xla):
    assert under_xla.feasible and under_xla.batch == BATCH and under_xla.microbatches > 1
    assert under_xla.peak_bytes <= LIMIT
    assert f"batch 32 in {under_xla.microbatches} microbatches" in str(under_xla)
    model = network(True)
    under_xla.apply(model)
    assert ct.memory.memory_analysis(model, *samples(BATCH)).total_bytes <= LIMIT


def test_a_plan_in_microbatches_from_its_json(under_xla):
    again = ModelPlan.from_json(under_xla.to_json())
    assert again == under_xla
    model = network(True)
    again.apply(model)
    assert accumulation.microbatches_of(model) == under_xla.microbatches
    ct.restore_model(model)
    assert accumulation.microbatches_of(model) == 1 and "train_step" not in vars(model)


def test_fit_keeps_the_limit_and_the_losses():
    x, y = samples(3 * BATCH + 3)
    with tf.device("CPU:0"):
        model = network(False)
        gc.collect()
        limit = EXECUTORS_LIMIT + tf.config.experimental.get_memory_info("CPU:0")["current"]
        report = ct.compress_model(model, memory=limit, batch_size=BATCH, check=False)
        assert accumulation.microbatches_of(model) > 1
        assert "Confirmed by a step of two microbatches" in report.table()
        plain = network(False)
        batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]  # the last of 3
        losses = [[m.train_on_batch(*batch) for batch in batches] for m in (model, plain)]
    np.testing.assert_allclose(*losses, rtol=2e-3)


@pytest.mark.long
def test_batch_normalization_is_divided_only_where_asked_for():
    with pytest.raises(ValueError, match="statistics from each microbatch.*norm0.*microbatches=True"):
        ct.compress_model(network(True, norm=True), memory=LIMIT, batch_size=BATCH)
    model = network(True, norm=True)
    ct.compress_model(model, memory=LIMIT, batch_size=BATCH, microbatches=True)
    assert accumulation.microbatches_of(model) > 1


def test_it_is_not_divided_against_the_users_will():
    found = ct.plan(network(True), BATCH, LIMIT, microbatches=False)
    assert not found.feasible and found.microbatches == 1
