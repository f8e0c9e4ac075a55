"""Plans of steps that XLA compiles: exact before anything runs, never over the limit, applied as planned."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf
from models import compiled
from needs_xla import needs_xla
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import cli
from tf_comptrain.compression.instrumentation import instrumentation, is_compressed
from tf_comptrain.memory.batches import random_batch
from tf_comptrain.model_planning import ModelPlan, compiled_plan
from tf_comptrain.placement.accumulation import set_microbatches

pytestmark = needs_xla

layers = keras.layers
BATCH = 1024


def perceptron():
    """Dense layers of different widths: four tensors that cross."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((32,), name="inputs")
    for k, width in enumerate((192, 128, 96, 64)):
        x = layers.ReLU(name=f"relu{k}")(layers.Dense(width, name=f"dense{k}")(x))
    return compiled(
        keras.Model(inputs, layers.Dense(10, name="last")(x), name="perceptron"), jit_compile=True
    )


def convolutions():
    """Convolutions with ReLU, and one normalization."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((8, 8, 3), name="inputs")
    for k in range(4):
        x = layers.Conv2D(8, 3, padding="same", name=f"conv{k}")(x)
        x = layers.BatchNormalization(name="bn")(x) if k == 1 else x
        x = layers.ReLU(name=f"relu{k}")(x)
    x = layers.Dense(10, name="dense")(layers.GlobalAveragePooling2D(name="mean")(x))
    return compiled(keras.Model(inputs, x, name="convolutions"), jit_compile=True)


NETWORKS = {"perceptron": perceptron, "convolutions": convolutions}


class Case:
    """A network, and plans for it: what was compiled once is not compiled again."""

    def __init__(self, make):
        self.model, self._plans = make(), {}
        self.kept = self._planned(10**10)[0]
        self.too_small, self.ends = self._planned(10**3)

    def limit(self, share):
        """So far from what everything as streams takes to what everything kept does."""
        low, high = self.too_small.smallest_bytes, self.kept.peak_bytes
        return int(low + share * (high - low))

    def plan(self, share):
        if share not in self._plans:
            self._plans[share] = self._planned(self.limit(share))[0]
        return self._plans[share]

    def _planned(self, limit):
        return compiled_plan.plan_compiled(self.model, BATCH, limit, {})


@pytest.fixture(scope="module")
def case_of():
    found = {}

    def of(name):
        if name not in found:
            found[name] = Case(NETWORKS[name])
        return found[name]

    return of


@pytest.fixture
def case(case_of):
    return case_of("perceptron")


def assert_is_held_as_planned(model, plan):
    """By the compiler's plan of the applied model, and by what crosses in the step that `fit` traces."""
    assert ct.memory.memory_analysis(model, BATCH).total_bytes == plan.peak_bytes
    before = model.optimizer.iterations.numpy()
    model.fit(tf.data.Dataset.from_tensors(random_batch(model, BATCH)).repeat(2), verbose=0)
    assert model.optimizer.iterations == before + 2
    held = {row.name: row.storage for row in instrumentation(model).held.crossings}
    forms = {"keep": "keep", "stream:plane": "compress", "stream:bits": "bitmask"}
    for name, choice in plan.choices.items():
        assert held[name] == forms[choice], (name, choice)


@pytest.mark.long(but=["perceptron-0.6"])
@pytest.mark.parametrize(("name", "share"), [("perceptron", 0.3), ("perceptron", 0.6), ("convolutions", 0.6)])
def test_within_the_limit_and_as_planned(case_of, name, share):
    case = case_of(name)
    limit, plan = case.limit(share), case.plan(share)
    assert plan.feasible and plan.peak_bytes <= limit == plan.limit_bytes
    assert plan.smallest_bytes <= plan.peak_bytes and plan.kept_peak_bytes == case.kept.peak_bytes
    smallest = min(row.value_bytes - row.held_bytes for row in plan.rows if row.choice != "keep")
    assert plan.peak_bytes >= 0.99 * limit or smallest > limit - plan.peak_bytes
    assert not is_compressed(case.model)
    plan = ModelPlan.from_json(plan.to_json())
    plan.apply(case.model)
    try:
        assert_is_held_as_planned(case.model, plan)
    finally:
        ct.restore_model(case.model)


@pytest.mark.long
def test_more_memory_keeps_more(case):
    plans = [case.too_small, case.plan(0.3), case.plan(0.6), case.kept]
    held = [sum(row.held_bytes for row in plan.rows) for plan in plans]
    assert held == sorted(held) and held[0] < held[1] < held[2] < held[3]


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_everything_kept_is_plain_keras(case_of, name):
    """Losses and weights, bit for bit; in hardly more memory."""
    case = case_of(name)
    assert set(case.kept.choices.values()) == {"keep"}
    model, plain = NETWORKS[name](), NETWORKS[name]()
    assert case.kept.peak_bytes <= 1.001 * ct.memory.memory_analysis(plain, BATCH).total_bytes
    case.kept.apply(model)
    x, y = random_batch(model, BATCH)
    losses = [[one.train_on_batch(x, y) for _ in range(3)] for one in (model, plain)]
    assert losses[0] == losses[1]
    for ours, theirs in zip(model.get_weights(), plain.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    assert ct.memory.memory_analysis(model, BATCH).total_bytes == case.kept.peak_bytes


def test_below_the_smallest(case):
    plan = case.too_small
    assert not plan.feasible and "keep" not in plan.choices.values()
    assert "No plan within the limit was found" in str(plan)
    expected = f"`memory` must be at least about \"{plan.smallest_bytes / 1e6:.1f}MB\" for 'perceptron'"
    with pytest.raises(ValueError, match=re.escape(expected)):
        plan.apply(case.model)
    assert not is_compressed(case.model)


@pytest.fixture
def planned_before(case, monkeypatch):
    """`compress_model` plans nothing anew."""

    def plan(model, batch, limit, streams, progress, smaller_tiles=1):
        found = case.plan(0.6) if limit >= case.limit(0.6) else case.too_small
        return found._replace(limit_bytes=limit), case.ends

    monkeypatch.setattr("tf_comptrain.model_planning.model.plan_compiled", plan)


def test_microbatches_that_keep_within_a_limit(case, planned_before):
    """What the message advises does."""
    limit = int(0.9 * case.too_small.smallest_bytes)
    with pytest.raises(ValueError, match="it was not divided: microbatches=False") as caught:
        ct.compress_model(case.model, memory=limit, batch_size=BATCH, microbatches=False)
    advised = re.search(r'in (\d+) microbatches of (\d+) takes about "([\d.]+)MB"', str(caught.value))
    count, samples, size = advised.groups()
    assert int(count) * int(samples) == BATCH and float(size) * 1e6 <= 1.01 * limit
    model = perceptron()
    compiled(model, keras.optimizers.SGD(0.05, momentum=0.9), jit_compile=True)
    ct.compress_model(model)
    set_microbatches(model, int(count))
    assert ct.memory.memory_analysis(model, BATCH).total_bytes <= limit


def test_compress_model_under_a_limit(case, planned_before):
    limit = case.limit(0.6)
    report = ct.compress_model(case.model, memory=limit, batch_size=BATCH)
    try:
        total = ct.memory.memory_analysis(case.model, BATCH).total_bytes
        assert total <= limit
        text = str(report)
        assert "Planned by XLA's compiler" in text and "kept it would hold" in text
        assert "looked at after step 2" not in text
    finally:
        ct.restore_model(case.model)


def test_a_plan_that_has_not_run_says_so(case, tmp_path):
    plan = case.kept
    assert plan.step_s is None and plan.plain_s is None and plan.bound_s is None
    assert "step   not run: XLA's plan is read before anything runs" in str(plan)
    assert "adds 0" not in str(plan) and "None" not in str(plan)
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    assert ModelPlan.from_json(path) == plan
    other = case.too_small
    assert plan.difference(plan) == "" and "+perceptron_1/relu0_1/Relu" in plan.difference(other).replace(
        " ", ""
    )
    with pytest.raises(ValueError, match="its step has not run"):
        plan.plot(tmp_path / "plan.png")


def test_progress_and_interruption(case, monkeypatch):
    """The ends are known: what is found until Ctrl-C counts."""
    told, limit = [], case.limit(0.3)

    def interrupt(search, compile_step, most):
        raise KeyboardInterrupt

    monkeypatch.setattr(compiled_plan.KeptSearch, "run", interrupt)
    plan = ct.plan(case.model, BATCH, limit, progress=told.append)
    assert plan.feasible and plan.peak_bytes == case.too_small.peak_bytes
    assert [one.peak_bytes for one in told] == [None, plan.peak_bytes] and told[-1].step_s is None
    assert not is_compressed(case.model)


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


@pytest.mark.long
def test_a_train_step_of_its_own(case):
    plain = perceptron()
    model = compiled(OwnStep(plain.inputs, plain.outputs, name="own"), jit_compile=True)
    plan = ct.plan(model, BATCH, "1GB")
    assert plan.rows and plan.kept_peak_bytes == ct.memory.memory_analysis(model, BATCH).total_bytes
    compiled(model, jit_compile=False)
    with pytest.raises(ValueError, match="`train_step` of its own"):
        ct.plan(model, BATCH, "2MB")


def test_a_lossless_plan_has_no_streams(case):
    plan = ct.plan(case.model, BATCH, "1GB", codec="zvc")
    assert plan.feasible and not any(row.choice.startswith("stream:zvc") for row in plan.rows)


def test_what_cannot_be_planned(case):
    model = case.model
    with pytest.raises(ValueError, match="`hardware` must be left out for a model that XLA compiles"):
        ct.plan(model, BATCH, "1GB", hardware="examples/hardware/h200x4.json")
    with pytest.raises(ValueError, match="several devices: XLA compiles its step"):
        ct.plan(model, BATCH, devices=2)
    with pytest.raises(ValueError, match="`memory` must be bytes"):
        ct.plan(model, BATCH, "8 parsecs")
    with pytest.raises(ValueError, match="`batch_size` must be an integer"):
        ct.plan(model, 0, "1GB")
    assert not is_compressed(model)


def test_command(case, capsys, monkeypatch):
    engines = []

    def build(*args, jit_compile):
        engines.append(jit_compile)
        return case.model

    def plan(model, *args, progress, **kwargs):
        return case.kept

    monkeypatch.setattr("tf_comptrain.cli.bench_worker.build", build)

    monkeypatch.setattr("tf_comptrain.model_planning.plan", plan)
    command = ["tf-comptrain", "plan", "--memory", "1GB", "--json"]
    assert cli.run(cli.parse([*command, "--jit-compile"])) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["step_s"] is None and found["peak_bytes"] == case.kept.peak_bytes and found["layers"]
    cli.run(cli.parse(command))
    assert engines == [True, False]
