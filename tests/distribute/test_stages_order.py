"""The order of microbatches, as control dependencies say it: stage s of S holds those of S - s at most."""

import re

import numpy as np
import pytest
import tensorflow as tf
from models import optimized_graph
from tensorflow import keras
from tensorflow.keras import layers

import tf_comptrain as ct
from tf_comptrain.distribute import Stage

STAGES, MICROBATCHES = 3, 5


def chain():
    keras.utils.set_random_seed(0)
    parts = [layers.Conv2D(8, 3, padding="same", activation="relu", name=f"conv{k}") for k in range(STAGES)]
    last = [layers.Flatten(name="flat"), layers.Dense(4, name="out")]
    return keras.Sequential([keras.Input((16, 16, 8)), *parts, *last], name="chain")


def stages():
    last = ("flat", "out")
    return [Stage((f"conv{k}", *(last if k == STAGES - 1 else ())), (k,)) for k in range(STAGES)]


def compiled(model, **settings):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), **settings)
    return model


def traced(model):
    graphs = []

    @tf.function(autograph=False)
    def step(x, y):
        graphs.append(tf.compat.v1.get_default_graph())
        return model.train_step((x, y))

    step.get_concrete_function(tf.zeros((10, 16, 16, 8)), tf.zeros((10,), tf.int32))
    return graphs[-1].get_operations()


def before(op):
    """Names of all that an operation waits for."""
    found, waiting = set(), [op]
    while waiting:
        op = waiting.pop()
        for other in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if other.name not in found:
                found.add(other.name)
                waiting.append(other)
    return found


def in_order(operations, kind, layer):
    """Of each microbatch, in the order in which they were traced."""
    return [op for op in operations if op.type == kind and re.search(rf"\b{layer}(_\d+)?/", op.name)]


@pytest.mark.parametrize("storage", ["keep", "stream"])
def test_a_stage_waits_for_the_microbatch_that_frees_its_memory(storage):
    model = chain()
    ct.compress_model(model, **({"storage": "keep"} if storage == "keep" else {}))
    ct.distribute.place(model, stages(), MICROBATCHES, devices=["CPU:0"] * STAGES)
    operations = traced(compiled(model))
    for stage in range(STAGES):
        forward = in_order(operations, "Conv2D", f"conv{stage}")
        backward = in_order(operations, "Conv2DBackpropFilter", f"conv{stage}")
        assert len(forward) == len(backward) == MICROBATCHES
        for number, op in enumerate(forward):
            waits = before(op)
            ended = [k for k, other in enumerate(backward) if other.name in waits]
            assert ended == list(range(number - (STAGES - stage) + 1))
        reads = in_order(operations, "ReadVariableOp", f"conv{stage}")
        each = len(reads) // MICROBATCHES
        assert each == 2  # kernel and bias, which devices that do not have them are sent
        for number in range(STAGES - stage, MICROBATCHES):
            for op in reads[each * number : each * (number + 1)]:
                assert backward[number - (STAGES - stage)].name in before(op)


def test_each_gradient_is_added_to_the_sum_as_it_comes():
    model = chain()
    ct.distribute.place(model, stages(), MICROBATCHES, devices=["CPU:0"] * STAGES)
    graph = optimized_graph(compiled(model), np.zeros((10, 16, 16, 8), np.float32), np.zeros(10))
    filters = [node for node in graph.values() if node.op == "Conv2DBackpropFilter"]
    assert len(filters) == STAGES * MICROBATCHES
    assert max((len(node.input) for node in graph.values() if node.op == "AddN"), default=0) <= 2


def test_without_microbatches_nothing_waits():
    model = chain()
    ct.distribute.place(model, stages(), devices=["CPU:0"] * STAGES)
    operations = traced(compiled(model))
    assert len(in_order(operations, "Conv2D", "conv0")) == 1
    assert not any("BackpropFilter" in name for name in before(in_order(operations, "Conv2D", "conv2")[0]))


def test_batches_that_microbatches_do_not_divide_count_by_their_samples():
    random = np.random.default_rng(0)
    x, y = random.random((10, 16, 16, 8), np.float32), random.integers(0, 4, 10)
    weight = random.random(10).astype(np.float32)
    losses = []
    for placed in (False, True):
        model = compiled(chain())
        if placed:
            ct.distribute.place(model, stages(), 3, devices=["CPU:0"] * STAGES)
        losses.append(
            model.fit(x, y, sample_weight=weight, batch_size=10, epochs=3, verbose=0).history["loss"]
        )
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_tensors_are_rebuilt_in_microbatches():
    random = np.random.default_rng(0)
    x, y = random.random((16, 16, 16, 8), np.float32), random.integers(0, 4, 16)
    losses = []
    for storage in ("keep", "rebuild"):
        keras.utils.set_random_seed(0)
        parts = [
            layers.Conv2D(8, 3, name="conv0"),
            layers.BatchNormalization(name="norm"),
            layers.ReLU(name="relu"),
        ]
        parts += [layers.Conv2D(8, 3, name="conv1"), layers.Flatten(name="flat"), layers.Dense(4, name="out")]
        model = compiled(keras.Sequential([keras.Input((16, 16, 8)), *parts]))
        ct.compress_model(model, storage=storage)
        halves = [Stage(("conv0", "norm", "relu"), (0,)), Stage(("conv1", "flat", "out"), (1,))]
        ct.distribute.place(model, halves, 2, devices=["CPU:0"] * 2)
        losses.append(model.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history["loss"])
        rebuilt = [op.name for op in traced(model) if op.name.startswith("rebuilt")]
        assert bool(rebuilt) == (storage == "rebuild")
    np.testing.assert_allclose(*losses, rtol=0.05)
