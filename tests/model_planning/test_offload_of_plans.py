"""Plans whose streams wait in a file: below what holds all of them on the device, by the same numbers."""

import numpy as np
import pytest
import tensorflow as tf
from models import compiled
from own_cache import cache  # noqa: F401
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import memory
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.memory.batches import random_batch
from tf_comptrain.model_planning import ModelPlan, calibrate, trials
from tf_comptrain.model_planning.offload_of_plan import offload_of_plan
from tf_comptrain.model_planning.speeds import on_machine

layers = keras.layers
BATCH = 32
BLOCKS = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("waiting")


@pytest.fixture(scope="module")
def model():
    """Of many tensors of 4 MB, so that their streams decide about the peak."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((32, 32, 32))
    for k in range(BLOCKS):
        x = layers.Conv2D(32, 3, padding="same", activation="relu", name=f"conv{k}")(x)
    x = layers.Dense(10, name="dense")(layers.GlobalAveragePooling2D(name="mean")(x))
    # Slower than usual: streams take more from step to step where weights leap.
    return compiled(keras.Model(inputs, x, name="deep"), keras.optimizers.SGD(0.01), jit_compile=False)


@pytest.fixture(scope="module")
def prepared(model, folder):
    ct.compress_model(model)
    try:
        return trials.prepare(model, BATCH, None, offload_of_plan(ct.Offload(folder=folder), "plane"))
    finally:
        ct.restore_model(model)


def search(model, prepared, limit, runs=trials.RUNS):
    ct.compress_model(model)
    try:
        return trials.search(model, prepared, int(limit), 0, 2.0, runs)[0]
    finally:
        ct.restore_model(model)


def fitted(model, batch, steps=2):
    """(peak over the resting level, losses) of steps from the same weights."""
    model.optimizer.build(model.trainable_variables)
    state = [*model.variables, *model.optimizer.variables]
    before = [variable.numpy() for variable in state]
    data = tf.data.Dataset.from_tensors(batch)
    losses = []
    for _ in range(steps):
        tf.config.experimental.reset_memory_stats(memory.device())
        losses.append(model.fit(data, verbose=0).history["loss"][0])
    found = tf.config.experimental.get_memory_info(memory.device())
    for variable, value in zip(state, before):
        variable.assign(value)
    return found["peak"] - found["current"], losses


def limit_below_streams(prepared):
    """A quarter of what the streams take has to be elsewhere."""
    smallest, _ = prepared.ends()
    return smallest - sum(tensor.options[0].bytes for tensor in prepared.graph.tensors) // 4


@pytest.fixture(scope="module")
def held(model):
    """What streams on the device reach: peak and losses."""
    ct.compress_model(model)
    try:
        return fitted(model, random_batch(model, BATCH))
    finally:
        ct.restore_model(model)


def peak_of_applied(model, plan, folder, held):
    """The peak of a plan's steps, which train as streams on the device do."""
    ModelPlan.from_json(plan.to_json()).apply(model, ct.Offload(folder=folder))
    try:
        peak, losses = fitted(model, random_batch(model, BATCH))
        rows = {row.name: row for row in instrumentation(model).held.crossings}
    finally:
        ct.restore_model(model)
    assert losses == pytest.approx(held[1], rel=1e-3)  # what is kept comes back as it is
    offloaded = [name for name, choice in plan.choices.items() if choice == "offload"]
    assert offloaded and {rows[name].storage for name in offloaded} == {"offload"}
    return peak


def test_a_plan_that_offloads_trains_as_streams_do(model, prepared, folder, held):
    """Not tried by steps."""
    plan = search(model, prepared, limit_below_streams(prepared), runs=0)
    assert plan.feasible
    peak_of_applied(model, plan, folder, held)


@pytest.mark.long
def test_a_limit_below_all_streams(model, prepared, folder, held):
    limit = limit_below_streams(prepared)
    on_device = prepared._replace(graph=_without_offload(prepared.graph), offload=None)
    assert not search(model, on_device, limit).feasible
    plan = search(model, prepared, limit)
    assert plan.feasible
    assert peak_of_applied(model, plan, folder, held) < held[0]


def _without_offload(graph):
    tensors = [t._replace(options=tuple(o for o in t.options if o.label != "offload")) for t in graph.tensors]
    return graph._replace(tensors=tuple(tensors))


def test_what_moves_is_the_stream(prepared):
    offered = [(t, o) for t in prepared.graph.tensors for o in t.options if o.label == "offload"]
    assert len(offered) >= BLOCKS - 1
    for tensor, option in offered:
        stream = tensor.options[0]
        assert option.bytes == stream.bytes < tensor.bytes
        assert option.encode_s > stream.encode_s and option.decode_s > stream.decode_s  # a core copies
        assert option.out_s > 0


def test_a_described_machine_has_its_own_link(prepared):
    here = calibrate()
    link = here.host_link._replace(bytes_per_s=here.host_link.bytes_per_s / 10)
    graph = on_machine(prepared.graph, here, here._replace(host_link=link))
    before, after = (
        [o.out_s for t in g.tensors for o in t.options if o.label == "offload"]
        for g in (prepared.graph, graph)
    )
    np.testing.assert_allclose(after, 10 * np.array(before))


def test_where_nothing_may_wait():
    assert offload_of_plan(False, "plane") is None
    assert offload_of_plan(True, "zvc") is None  # bit for bit: the step would be another one
    assert offload_of_plan(True, "plane").codec.name == "plane"


def test_a_file_in_memory_is_no_place(monkeypatch):
    monkeypatch.setattr("tf_comptrain.model_planning.offload_of_plan.is_in_memory", lambda folder: True)
    assert offload_of_plan(True, "plane") is None
    assert offload_of_plan(ct.Offload(), "rans").codec.name == "rans"  # asked for


def test_bad_input(model):
    with pytest.raises(TypeError, match="`offload` must be True, False or an Offload. Received: 'disk'"):
        ct.plan(model, BATCH, "1GB", offload="disk")
    with pytest.raises(ValueError, match="`offload` must have a tier that this machine has: a step on a CPU"):
        ct.compress_model(model, memory="1GB", batch_size=BATCH, offload=ct.Offload(tier="host"))


def test_what_is_too_small_is_what_steps_took(model, prepared):
    """The model of the step may be below them."""
    plan = search(model, prepared, 0.6 * prepared.ends()[0])
    assert not plan.feasible
    assert plan.limit_bytes < plan.smallest_bytes <= plan.peak_bytes
