"""From a model to a plan, applied: what is held is what was planned, and bad input changes nothing."""

import json
import re
from typing import NamedTuple

import pytest
import tensorflow as tf
from models import compiled
from own_cache import cache  # noqa: F401
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import _keras, cli, memory
from tf_comptrain.compression.instrumentation import compressed_models, instrumentation, is_compressed
from tf_comptrain.compression.layer_names import fingerprint
from tf_comptrain.memory.batches import random_batch
from tf_comptrain.model_planning import ModelPlan, cache_path, calibrate, peak_check, trials
from tf_comptrain.model_planning.crossing_tensors import held_tensors
from tf_comptrain.model_planning.speeds import on_machine
from tf_comptrain.planner import hardware_from_json
from tf_comptrain.storage import Holding

layers = keras.layers
BATCH = 8


def network(name="planned", filters=32):
    """Three groups of convolution, normalization and ReLU, of 1 MB tensors."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((32, 32, 3))
    for k in range(3):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"conv{k}")(x)
        x = layers.ReLU(name=f"relu{k}")(layers.BatchNormalization(name=f"bn{k}")(x))
    x = layers.Dense(10, name="dense")(layers.GlobalAveragePooling2D(name="mean")(x))
    return compiled(keras.Model(inputs, x, name=name), jit_compile=False)


class Case(NamedTuple):
    model: keras.Model
    prepared: trials.Prepared

    def plan(self, limit, runs=0):
        """As `ct.plan`, without measuring the model's own steps again."""
        if runs:
            ct.compress_model(self.model)
        try:
            return trials.search(self.model, self.prepared, int(limit), 0, 2.0, runs)[0]
        finally:
            if runs:
                ct.restore_model(self.model)


@pytest.fixture(scope="module")
def case():
    model = network()
    ct.compress_model(model)
    prepared = trials.prepare(model, BATCH, None)
    ct.restore_model(model)
    tensors = tuple(
        tensor._replace(options=tuple(map(costly, tensor.options))) for tensor in prepared.graph.tensors
    )
    return Case(model, prepared._replace(graph=prepared.graph._replace(tensors=tensors)))


def costly(option):
    """What a busy machine may measure as nothing: it would leave no reason to keep a tensor."""
    return option._replace(encode_s=max(option.encode_s, 1e-3)) if hasattr(option, "encode_s") else option


def middle(case):
    low, high = case.prepared.ends()
    return (low + high) // 2


def highest_peak(model, steps=4):
    tf.config.experimental.reset_memory_stats(memory.device())
    data = tf.data.Dataset.from_tensors(random_batch(model, BATCH)).repeat(steps)
    model.fit(data, verbose=0)
    return tf.config.experimental.get_memory_info(memory.device())["peak"]


def test_the_graph_has_every_tensor_that_crosses(case):
    names = [tensor.name for tensor in case.prepared.graph.tensors]
    for layer in ("conv0", "relu0", "conv1", "relu1", "conv2", "relu2"):
        assert any(f"/{layer}" in name for name in names), (layer, names)
    rebuilt = {
        t.name.split("/")[1][:5]
        for t in case.prepared.graph.tensors
        for o in t.options
        if "rebuild" in o.label
    }
    assert rebuilt == {"relu0", "relu1"}  # what is made of the last one reads its bits alone


def test_the_smallest_step_is_predicted_as_it_was(case):
    """Of the way in which it ran the step's levels are the allocator's own."""
    state = trials._with_all(case.prepared.graph, "stream")  # noqa: SLF001
    live = state.measure()[1] - case.prepared.graph.resting_bytes
    assert live == pytest.approx(case.prepared.held_bytes, rel=0.25)


def test_what_is_held_is_what_was_planned(case):
    plan = case.plan(middle(case))
    assert len({choice.partition(":")[0] for choice in plan.choices.values()}) > 1
    plan.apply(case.model)
    try:
        case.model.train_on_batch(*random_batch(case.model, BATCH))
        held = {row.name: row.storage for row in instrumentation(case.model).held.crossings}
        for name, choice in plan.choices.items():
            expected = {"keep": "keep", "stream:plane": "compress", "stream:bits": "bitmask"}
            assert held[name] == expected.get(choice, "bitmask"), (name, choice)
    finally:
        ct.restore_model(case.model)


def test_a_rebuilt_tensor_leaves_its_bits(case):
    names = {t.name for t in case.prepared.graph.tensors for o in t.options if "rebuild" in o.label}
    tensors = [t for t in case.prepared.tensors if t.name in names]
    storage = {}
    for held in tensors:
        storage.update(dict.fromkeys((held.op, *held.rebuilding.normalizations), "rebuild"))
    ct.compress_model(case.model, storage=storage)
    try:
        case.model.train_on_batch(*random_batch(case.model, BATCH))
        held = {row.name: row.storage for row in instrumentation(case.model).held.crossings}
        assert [held[t.name] for t in tensors] == ["bitmask"] * len(tensors)
    finally:
        ct.restore_model(case.model)


def test_sums_of_residual_blocks_are_not_offered_to_be_rebuilt():
    x = inputs = keras.Input((32, 32, 32))
    for k in range(2):
        y = layers.Conv2D(32, 3, padding="same", name=f"conv{k}")(x)
        y = layers.BatchNormalization(name=f"bn{k}")(y)
        x = layers.ReLU(name=f"relu{k}")(layers.Add(name=f"add{k}")([y, x]))
    outputs = layers.Dense(10)(layers.GlobalAveragePooling2D()(layers.Conv2D(32, 3, name="last")(x)))
    model = compiled(keras.Model(inputs, outputs), jit_compile=False)
    ct.compress_model(model)
    graphs = []
    with _keras.on_gradients(lambda backward: graphs.append(backward.graph)):
        _keras.trace_train_step(model, *random_batch(model, BATCH))
    found = held_tensors(graphs[-1])
    assert [t for t in found if "relu" in t.name]
    assert not [t.name for t in found if t.rebuilding is not None]


def test_a_larger_limit_keeps_more_and_takes_less_time(case):
    low, high = case.prepared.ends()
    plans = [case.plan(low + share * (high - low)) for share in (0.2, 0.5, 0.8, 1.5)]
    assert all(plan.feasible for plan in plans)
    times, held = ([p.step_s for p in plans], [sum(r.held_bytes for r in p.rows) for p in plans])
    assert times == sorted(times, reverse=True) and held == sorted(held)
    assert set(plans[-1].choices.values()) == {"keep"}


def test_a_plan_that_was_tried_keeps_within_its_limit(case):
    limit = middle(case)
    plan = case.plan(limit, runs=trials.RUNS)
    assert plan.feasible and plan.peak_bytes <= limit
    plan.apply(case.model)
    try:  # peaks scatter, and the process has other tests' tensors
        assert highest_peak(case.model) <= 1.1 * limit
    finally:
        ct.restore_model(case.model)


@pytest.mark.parametrize("resting", [0, 10**9])
@pytest.mark.parametrize("share", [0.8, 1.25])
def test_trials_come_within_the_limit_where_the_model_of_memory_is_wrong(case, monkeypatch, share, resting):
    """Steps that take another share of memory than is known: the planner is asked for as much less or more."""
    resting += case.prepared.graph.resting_bytes
    graph = case.prepared.graph._replace(resting_bytes=resting)
    case = case._replace(prepared=case.prepared._replace(graph=graph))
    taken = []

    def run(model, prepared, plan):
        live = sum(row.held_bytes for row in plan.rows)
        taken.append(int(share * live + prepared.held_bytes / 2))
        rests = prepared.graph.resting_bytes
        return trials.MeasuredSteps(plan.step_s, taken[-1], rests, None, None)

    monkeypatch.setattr(trials, "_run", run)
    kept = run(None, case.prepared, case.plan(10 * case.prepared.ends()[1])).peak_bytes
    least = run(None, case.prepared, case.plan(case.prepared.ends()[0])).peak_bytes
    limit = case.prepared.graph.resting_bytes + (kept + least) // 2
    plan = case.plan(limit, runs=trials.RUNS)
    assert plan.feasible and plan.peak_bytes <= limit
    assert "keep" in plan.choices.values() and len(taken) <= 2 + trials.RUNS


def test_two_trials_of_a_plan_have_one_peak(case):
    plan = case.plan(middle(case))
    ct.compress_model(case.model)
    try:
        peaks = [trials._run(case.model, case.prepared, plan).peak_bytes for _ in range(3)]  # noqa: SLF001
    finally:
        ct.restore_model(case.model)
    assert max(peaks) <= 1.02 * min(peaks)


def test_what_the_planner_is_asked_for(case):
    asked = trials._Asked(1000)  # noqa: SLF001
    assert not asked.is_used(1001, 0) and not asked.is_used(900, 0) and asked.is_used(1000, 0)
    assert not asked.is_used(970, 900) and asked.is_used(997, 900)  # of what is not at rest
    asked.learn(1400, 200)  # 1200 of 800: ask for two thirds, a little less
    assert 650 < asked.bytes < 740
    over = asked.bytes
    asked.learn(800, 200)
    assert over < asked.bytes < 1000
    asked.learn(1100, 200)
    assert over < asked.bytes < 1000
    asked = trials._Asked(1000)  # noqa: SLF001
    asked.learn(1040, 900)  # 140 of 100
    assert 968 < asked.bytes < 972


def test_json_and_another_model(case):
    plan = case.plan(middle(case))
    again = ModelPlan.from_json(plan.to_json())
    assert again.choices == plan.choices and again.storage == plan.storage and type(again) is ModelPlan
    other = network("other")
    with pytest.raises(
        ValueError, match="`model` must be the one that the plan was made for, 'planned'.*'other'"
    ):
        again.apply(other)
    assert not is_compressed(other)
    again.apply(case.model)
    ct.restore_model(case.model)


def test_a_plan_of_another_engine(case, caplog):
    model = network("for_two")
    plan = case.plan(middle(case))._replace(fingerprint=fingerprint(model))
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(ValueError, match=r"TensorFlow's executor \(jit_compile=False\). Received: 'for_two'"):
        plan.apply(model)
    assert not is_compressed(model)
    model.compile("sgd", "mse", jit_compile=False)
    plan.apply(model)
    model.compile("sgd", "mse", jit_compile=True)
    x, _ = random_batch(model, 2)
    for _ in range(3):
        model.train_on_batch(x, tf.zeros((2, 10)))
    assert sum("the limit of" in record.message for record in caplog.records) == 1


@pytest.mark.parametrize("change", [{"activation": "gelu"}, {"size": 12}])
def test_a_plan_of_a_model_that_differs_in_no_weight(change):
    def model(activation="relu", size=8):
        parts = [keras.Input((size, size, 3)), layers.Conv2D(8, 3, activation=activation, name="conv")]
        return keras.Sequential([*parts, layers.GlobalAveragePooling2D(name="pool")], name="net")

    assert fingerprint(model()) == fingerprint(model()) != fingerprint(model(**change))


@pytest.fixture
def measured_before(case, monkeypatch):
    """The model's own steps are not measured again, and a plan is tried once."""
    monkeypatch.setattr(trials, "prepare", lambda *args: case.prepared)
    monkeypatch.setattr(trials, "RUNS", 1)


def test_compress_model_under_a_limit(case, measured_before):
    model, limit = case.model, middle(case)
    report = ct.compress_model(model, memory=limit, batch_size=BATCH)
    try:
        assert "looked at after step 2" in str(report)
        highest_peak(model, 3)
        text = str(report)
        assert "Measured after step 2" in text and "Next with more memory" in text
        assert re.search("; (kept it|a stream) would (free|take) ", text)
    finally:
        ct.restore_model(model)


class OfSteps:
    """In place of the allocator's peak: asked for before and after each step."""

    def __init__(self, peaks):
        self._asked = (value for peak in peaks for value in (0, peak))

    def __call__(self):
        return next(self._asked)


def test_steps_over_the_limit_are_planned_tighter(case, measured_before, monkeypatch, caplog):
    """Until they are within; the training goes on meanwhile."""
    model, limit = case.model, middle(case)
    # Of 2 steps of the first plan and of the second, of 12 of the third, of the fourth.
    peaks = [0, limit + 10**6] + [0, limit + 10**5] + [limit - 1] * 11 + [limit + 1] + [limit - 1] * 60
    report = ct.compress_model(model, memory=limit, batch_size=BATCH)
    monkeypatch.setattr(peak_check.counters, "peak_bytes", OfSteps(peaks))
    try:
        before = int(model.optimizer.iterations)
        model.fit(tf.data.Dataset.from_tensors(random_batch(model, BATCH)).repeat(60), verbose=0)
        assert int(model.optimizer.iterations) == before + 60
        assert sum("planned again" in record.message for record in caplog.records) == 3
        assert "Measured after step 25" in str(report)
    finally:
        ct.restore_model(model)


def test_steps_go_back_to_the_plan_that_took_least(case, measured_before, monkeypatch, caplog):
    model, limit = case.model, middle(case)
    # Of two steps of each of four plans, the second of which takes least; and of that one's again.
    over = [2000, 1000, 3000, 4000, 2000]
    peaks = [peak for more in over for peak in (0, limit + more)] + [limit - 1] * 30
    ct.compress_model(model, memory=limit, batch_size=BATCH)
    monkeypatch.setattr(peak_check.counters, "peak_bytes", OfSteps(peaks))
    named, wishes = [], instrumentation(model).held.wishes
    see = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: named.append(dict(wishes.named))
    )
    try:
        model.fit(
            tf.data.Dataset.from_tensors(random_batch(model, BATCH)).repeat(12), verbose=0, callbacks=[see]
        )
        assert sum("planned again" in record.message for record in caplog.records) == 3
        assert all(each == named[2] for each in named[8:])
        assert any("Planned again 3 times" in record.message for record in caplog.records)
    finally:
        ct.restore_model(model)


def test_what_is_held_beside_a_step_is_told_apart(case, measured_before, caplog):
    model, limit = case.model, middle(case)
    ct.compress_model(model, memory=limit, batch_size=BATCH)
    beside = []
    hold = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: beside.append(tf.zeros((limit // 8,)) + 1.0)
    )
    try:
        model.fit(
            tf.data.Dataset.from_tensors(random_batch(model, BATCH)).repeat(3), verbose=0, callbacks=[hold]
        )
        assert any("came beside the step" in record.message for record in caplog.records)
        ct.restore_model(model)
        with pytest.raises(ValueError, match="Others than this model hold"):
            ct.compress_model(model, memory=1000, batch_size=BATCH)
    finally:
        if model in compressed_models:
            ct.restore_model(model)


def test_what_runs_between_steps_is_no_step(case, measured_before, caplog):
    model, limit = case.model, middle(case)
    report = ct.compress_model(model, memory=limit, batch_size=BATCH)
    try:
        tf.zeros((limit // 4,))  # as a prediction of many samples makes them
        model.fit(tf.data.Dataset.from_tensors(random_batch(model, BATCH)).repeat(3), verbose=0)
        assert "within" in next(line for line in str(report).splitlines() if "Measured after step 2" in line)
        assert not any("planned again" in record.message for record in caplog.records)
    finally:
        ct.restore_model(model)


def test_the_first_step_leaves_room_for_what_is_there(case, measured_before):
    """Everything would be kept, if the process did not hold half of the limit besides."""
    model, limit = case.model, int(1.2 * case.prepared.ends()[1])
    report = ct.compress_model(model, memory=limit, batch_size=BATCH)
    before = dict(instrumentation(model).held.wishes.named)
    try:
        ballast = tf.zeros((limit // 2 // 4,))
        highest_peak(model, 1)
        assert "looked at after step 2" in str(report)
        again = instrumentation(model).held.wishes.named
        assert list(again.values()).count(Holding("keep")) < list(before.values()).count(Holding("keep"))
        del ballast
    finally:
        ct.restore_model(model)


def test_a_limit_below_what_is_possible(case, measured_before):
    with pytest.raises(
        ValueError, match=r'`memory` must be at least about "[\d.]+MB" for .* Received: "1.0MB"'
    ):
        ct.compress_model(case.model, memory="1MB", batch_size=BATCH)
    assert not is_compressed(case.model)


def test_a_limit_that_microbatches_keep_within(case, measured_before):
    """What the message advises does."""
    rest = case.prepared.graph.resting_bytes + case.prepared.graph.gradient_bytes
    limit = rest + int(0.6 * case.prepared.held_bytes)
    with pytest.raises(ValueError, match="it was not divided: microbatches=False") as caught:
        ct.compress_model(case.model, memory=limit, batch_size=BATCH, microbatches=False)
    advised = re.search(r'in (\d+) microbatches of (\d+) takes about "([\d.]+)MB"', str(caught.value))
    count, samples, size = map(float, advised.groups())
    assert size * 1e6 <= limit * 1.01 and count == BATCH / samples == 2
    assert case.prepared.parts(rest)[1] > rest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "8 parsecs"}, "`memory` must be bytes"),
        ({"memory": "1GB", "batch_size": 0}, "`batch_size` must be an integer of at least 1"),
        ({"memory": "1GB", "budget_s": 0}, "`budget_s`"),
        ({"memory": "1GB", "hardware": "missing.json"}, "missing.json"),
    ],
)
def test_bad_arguments(case, arguments, message):
    with pytest.raises((ValueError, OSError), match=message):
        ct.plan(case.model, **{"batch_size": BATCH, **arguments})
    assert not is_compressed(case.model)


def test_models_that_cannot_be_planned(case):
    sequential = keras.Sequential([layers.Dense(3)])
    sequential.compile("sgd", "mse")
    with pytest.raises(ValueError, match="must be built"):
        ct.plan(sequential, 8, "1GB")
    with pytest.raises(ValueError, match="is not compiled"):
        ct.plan(keras.Model(case.model.input, case.model.output), 8, "1GB")
    with pytest.raises(TypeError, match="`model` must be a keras.Model"):
        ct.plan("resnet", 8, "1GB")
    with pytest.raises(ValueError, match="`batch_size` is missing"):
        ct.compress_model(case.model, memory="1GB")
    with pytest.raises(ValueError, match="`storage` and `memory` exclude"):
        ct.compress_model(case.model, storage="keep", memory="1GB", batch_size=8)


def test_plans_among_the_streams_of_a_policy(case, monkeypatch):
    """What is measured, and what is applied, has the policy's codecs; that the plan keeps to them is prepare's part."""
    policy = ct.Policy({"convolution": ct.Setting("rans", "sigma", 0.4)})
    measured = []

    def prepare(model, batch, hardware, offload):
        measured.append(instrumentation(model).held.wishes.policy)
        return case.prepared

    monkeypatch.setattr(trials, "prepare", prepare)
    monkeypatch.setattr(trials, "RUNS", 0)
    ct.compress_model(case.model, memory=int(1.2 * case.prepared.ends()[1]), batch_size=BATCH, policy=policy)
    try:
        assert measured == [policy] == [instrumentation(case.model).held.wishes.policy]
    finally:
        ct.restore_model(case.model)
    with pytest.raises(ValueError, match="leave `codec` and `error_bound` out"):
        ct.plan(case.model, BATCH, "1GB", codec="rans", policy=policy)


def test_the_machine_is_measured_once(monkeypatch):
    first = calibrate()
    assert cache_path().exists() and hardware_from_json(cache_path()) == first
    monkeypatch.setattr("tf_comptrain.model_planning.costs._measured", lambda: pytest.fail("measured again"))
    assert calibrate() == first
    assert set(first.codecs) == {"plane", "rans", "zvc"}


def test_a_described_machine(case, tmp_path):
    here = calibrate()
    faster = here._replace(flops_per_s=10 * here.flops_per_s)
    graph = on_machine(case.prepared.graph, here, faster)
    assert graph.plain_s == pytest.approx(case.prepared.graph.plain_s / 10)
    before, after = ([t.options[0].encode_s for t in g.tensors] for g in (case.prepared.graph, graph))
    assert after == pytest.approx(before)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps({**json.loads(here.to_json()), "flops_per_s": -1}))
    with pytest.raises(ValueError, match="`flops_per_s` must be a number above 0"):
        ct.plan(case.model, BATCH, "1GB", hardware=path)


def test_command_calibrate(capsys):
    assert cli.run(cli.parse(["tf-comptrain", "calibrate", "--json"])) == 0
    assert hardware_from_json(json.loads(capsys.readouterr().out)) == calibrate()


def test_command_plan(case, capsys, monkeypatch):
    with monkeypatch.context() as here:
        here.setattr("tf_comptrain.cli.bench_worker.build", lambda *args, **options: case.model)
        here.setattr("tf_comptrain.model_planning.plan", lambda *args, **kwargs: case.plan(middle(case)))
        assert cli.run(cli.parse(["tf-comptrain", "plan", "--memory", "1GB", "--json"])) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) >= {"peak_bytes", "step_s", "bound_s", "gap", "feasible", "layers"}
    assert found["feasible"] and found["layers"]
    assert cli.run(cli.parse(["tf-comptrain", "plan", "--model", "resnet", "--memory", "1GB"])) == 2
    assert "keras.applications" in capsys.readouterr().err


@pytest.mark.long
def test_samples_that_are_small():
    """A step of 32 has no tensor that TensorFlow records; one of 256 has."""
    parts = [layers.Dense(512, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input((512,)), *parts, layers.Dense(10)])
    model.compile("sgd", "mse", jit_compile=False)
    in_use = tf.config.experimental.get_memory_info("CPU:0")["current"]
    plan = ct.plan(model, 1024, in_use + 40_000_000, budget_s=1.0)
    assert plan.feasible and len(plan.rows) == 4 and plan.batch == 1024


@pytest.mark.parametrize("check", ["no", 1])
def test_check_takes_truth_values_alone(case, check):
    with pytest.raises(TypeError, match=f"`check` must be True, False or None. Received: {check!r}"):
        ct.compress_model(case.model, check=check)
