"""memory.explain_peak, memory.report: what they say is what the allocator did."""

import gc
import json
import re
import statistics
import time

import numpy as np
import pytest
import tensorflow as tf
from models import chain, compiled, images, layers, small_cnn
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.memory import allocator_model, explain, predict, remedies, saved_report, trace
from tf_comptrain.memory.batches import random_batch
from tf_comptrain.memory.saved import SavedTensor

BATCH, SIZE = 32, 32


@pytest.fixture(scope="module")
def peaks():
    """The peak of one model, plain and then compressed."""
    model = compiled(small_cnn(size=SIZE))
    plain = ct.memory.explain_peak(model, BATCH)
    ct.compress_model(model)
    return {"plain": plain, "compressed": ct.memory.explain_peak(model, BATCH)}


@pytest.mark.parametrize("variant", ["plain", "compressed"])
def test_the_rows_add_up_to_the_peak(peaks, variant):
    peak = peaks[variant]
    assert sum(row.bytes for row in peak.rows) == peak.peak_bytes == sum(peak.by_kind.values())
    assert peak.batch_size == BATCH
    assert [row.bytes for row in peak.rows] == sorted((row.bytes for row in peak.rows), reverse=True)
    assert {row.kind for row in peak.rows} <= set(explain.KINDS)


def test_kinds_tell_plain_from_compressed():
    # A long chain: its activations outweigh what one layer works on, whichever of the parallel operations runs first.
    model = compiled(chain(24))
    plain_peak = ct.memory.explain_peak(model, BATCH)
    ct.compress_model(model)
    plain, compressed = plain_peak.by_kind, ct.memory.explain_peak(model, BATCH).by_kind
    assert plain[explain.FORWARD] > plain_peak.peak_bytes / 2
    assert explain.STREAM not in plain and explain.RESTORED not in plain
    assert compressed[explain.STREAM] > 0
    assert compressed.get(explain.FORWARD, 0) < plain[explain.FORWARD] / 4


@pytest.mark.parametrize("compress", [False, True])
def test_what_a_metric_takes_is_named(compress):
    """Keras' accuracy makes tensors of the size of all logits, beside the gradient of the loss."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((128, 64))
    kinds = {}
    for metrics in (None, ["accuracy"]):
        model = compiled(
            keras.Model(inputs, keras.layers.Dense(2000)(inputs)), metrics=metrics, jit_compile=False
        )
        if compress:
            ct.compress_model(model)
        peak = ct.memory.explain_peak(model, np.ones((8, 128, 64), "float32"), np.zeros((8, 128), "int32"))
        kinds[bool(metrics)] = {row.kind: row.op for row in peak.rows}
    assert explain.METRIC not in kinds[False]
    assert kinds[True][explain.METRIC] in ("BitwiseAnd", "Less", "Equal", "SelectV2")
    assert explain.ACTIVATION_GRADIENT not in kinds[True]


def test_a_peak_prints_and_is_json(peaks):
    text = str(peaks["plain"])
    assert "activations" in text and "conv1" in text
    assert f"[{BATCH},{SIZE},{SIZE},32]" in text
    found = json.loads(peaks["compressed"].to_json())
    assert found["peak_bytes"] == sum(row["bytes"] for row in found["rows"])
    assert "more" in peaks["plain"].table(rows=2)


def test_a_timed_step_begins_and_ends_with_devices_that_have_done_their_work(monkeypatch):
    order = []
    monkeypatch.setattr(tf.test.experimental, "sync_devices", lambda: order.append("sync"))
    monkeypatch.setattr(time, "perf_counter", lambda: order.append("clock") or 0.0)
    ct.memory.measure_call(lambda: order.append("step"))
    assert order == ["sync", "clock", "step", "sync", "clock"]


def test_the_allocator_peak_is_the_traced_one():
    model = compiled(small_cnn(size=SIZE))
    x, y = random_batch(model, BATCH)
    measured = {}

    def step():
        measured["peak"] = ct.memory.measure_call(runner)

    runner = explain._keras.train_step_runner(model, x, y)
    runner()
    traced = trace.trace_step(step)
    peak, resting, _ = measured["peak"]
    assert traced.peak_bytes + traced.base_bytes == peak + resting
    levels = [event.level_bytes for event in traced.events]
    assert [b - a for a, b in zip(levels, levels[1:])] == [event.bytes for event in traced.events[1:]]


def test_explaining_leaves_the_model_as_it_was():
    model = compiled(small_cnn())
    ct.compress_model(model)
    x, y = random_batch(model, 8)
    model.train_on_batch(x, y)
    sites = instrumentation(model).sites().values()
    before = [v.numpy() for v in model.variables], [site.read_state() for site in sites]
    ct.memory.report(model, 8)
    after = [v.numpy() for v in model.variables], [site.read_state() for site in sites]
    assert all(np.array_equal(a, b) for a, b in zip(before[0], after[0]))
    assert before[1] == after[1]


@pytest.mark.long("False")
@pytest.mark.parametrize("compress", [False, True])
def test_the_limit_holds_for_models_that_have_trained_before(compress):
    model = compiled(small_cnn())
    if compress:
        ct.compress_model(model)
    x, y = images(256)
    model.fit(x[:28], y[:28], batch_size=16, verbose=0)  # two sizes: traced for any
    in_use = tf.config.experimental.get_memory_info(ct.memory.device())["current"]
    with ct.memory.limit(in_use + 5_000_000):
        model.fit(x[:8], y[:8], batch_size=8, verbose=0)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="memory limit") as caught:
            model.fit(x, y, batch_size=256, verbose=0)
    said = re.search("A step of 256 samples holds about .*, most of it of (.*)[.] `(.*)`", str(caught.value))
    assert len(said[1].split(", ")) == 5 and "conv" in said[1]
    assert said[2].startswith("compress_model(model, memory=...)" if compress else "compress_model(model)")
    model.fit(x, y, batch_size=256, verbose=0)


def test_who_answers_a_step_out_of_memory_is_not_told_of_its_layers(monkeypatch):
    traced = []

    def said(model, batch, samples):
        traced.append((model, samples, [part.shape for part in batch(3)]))
        return "said"

    monkeypatch.setattr(remedies, "out_of_memory", said)
    refused = tf.errors.ResourceExhaustedError(None, None, "memory limit")
    x = tf.zeros((4, 2))
    refusing = pytest.raises(tf.errors.ResourceExhaustedError)
    with refusing as caught, remedies.answered(), remedies.explained("model", x, x):
        raise refused
    assert caught.value is refused and not traced
    refusing = pytest.raises(tf.errors.ResourceExhaustedError, match="memory limit\nsaid")
    with refusing, remedies.explained("model", x, x):
        raise refused
    assert traced == [("model", 4, [(3, 2), (3, 2)])]
    refusing = pytest.raises(tf.errors.ResourceExhaustedError)
    with refusing as caught, remedies.explained("model", None, None):  # a batch that nothing can be said of
        raise refused
    assert caught.value is refused


def test_what_explain_peak_refuses():
    model = small_cnn()
    with pytest.raises(ValueError, match="not compiled"):
        ct.memory.explain_peak(model, 8)
    compiled(model)
    with pytest.raises(ValueError, match="`y` is missing"):
        ct.memory.explain_peak(model, np.zeros((8, 16, 16, 3), "float32"))
    with pytest.raises(ValueError, match="`batch_size` must be an integer of at least 1. Received: 0"):
        ct.memory.explain_peak(model, 0)
    free = keras.Sequential([layers.Input((None, 3)), layers.GlobalAveragePooling1D(), layers.Dense(10)])
    with pytest.raises(ValueError, match="no fixed shape"):
        ct.memory.explain_peak(compiled(free), 8)


def test_random_batches_have_the_structure_of_the_model():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), dtype="int32", name="b")
    outputs = {"scores": layers.Dense(5, name="one")(a), "age": layers.Dense(1, name="two")(a)}
    model = keras.Model({"b": b, "a": a}, outputs)
    model.compile("sgd", {"scores": "sparse_categorical_crossentropy", "age": "mse"})
    x, y = random_batch(model, 6)
    assert {name: (t.shape, t.dtype) for name, t in x.items()} == {
        "a": ((6, 4), "float32"),
        "b": ((6, 3), "int32"),
    }
    assert {name: t.shape for name, t in y.items()} == {"scores": (6,), "age": (6, 1)}
    never_called = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    assert random_batch(compiled(never_called), 6)[0].shape == (6, 4)
    never_called = keras.Sequential([keras.Input((4,)), keras.Model(a, outputs)])
    never_called.compile("sgd", {"scores": "sparse_categorical_crossentropy", "age": "mse"})
    x, y = random_batch(never_called, 6)
    assert {name: t.shape for name, t in y.items()} == {"scores": (6,), "age": (6, 1)}
    never_called.train_on_batch(x, y)
    words = keras.Input((1,), dtype="string")
    lookup = layers.StringLookup(vocabulary=["a"], output_mode="one_hot")
    with pytest.raises(ValueError, match="no random strings"):
        random_batch(compiled(keras.Model(words, layers.Dense(2)(lookup(words)))), 6)


def test_report_lists_what_is_saved(tmp_path):
    model = compiled(small_cnn(size=SIZE))
    plain = ct.memory.report(model, BATCH, timeline=False)
    assert {row.storage for row in plain.rows} == {"keep"} and plain.predicted_bytes is None
    x, y = random_batch(model, BATCH)
    assert plain.saved_bytes == plain.saved_plain_bytes == ct.memory.saved_bytes(model, x, y)
    with pytest.raises(ValueError, match="timeline=True"):
        plain.plot(tmp_path / "none.png")

    ct.compress_model(model)
    report = ct.memory.report(model, BATCH)
    assert report.saved_plain_bytes == plain.saved_bytes
    by_tensor = {(row.layer, row.storage): row for row in report.rows}
    tensor = (BATCH, SIZE, SIZE, 32)
    mask = by_tensor["conv2", "bitmask"]
    assert mask.shape == tensor and mask.bytes == np.prod(tensor) / 8 and mask.value_bytes == 32 * mask.bytes
    stream = by_tensor["conv1", "compress"]
    assert stream.shape == tensor and stream.value_bytes > 4 * stream.bytes
    assert report.saved_bytes == sum(row.bytes for row in report.rows)
    assert 0.5 < report.predicted_bytes / report.saved_bytes < 2
    assert "bitmask" in str(report) and "in plain Keras" in str(report)
    lines = report.timelines
    assert list(lines) == [saved_report.PLAIN, saved_report.COMPRESSED]
    assert lines["plain"].peak_bytes > 1.2 * lines["compressed"].peak_bytes
    for line in lines.values():
        assert len(line.time_s) == len(line.live_bytes) > 10
        assert 0 < line.forward_end_s < line.time_s[-1]
        progress = line.progress()
        assert progress[0] == 0 and progress[-1] == 2 and progress == sorted(progress)
    assert set(json.loads(report.to_json())["timelines"]) == set(lines)

    report.plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").stat().st_size > 10_000


@pytest.mark.parametrize("compress", [False, True])
def test_the_report_of_a_small_step_has_no_timelines(compress):
    model = compiled(keras.Sequential([keras.Input((4,)), layers.Dense(2)]))
    if compress:
        ct.compress_model(model)
    found = ct.memory.report(model, 4)
    assert not found.timelines and found.rows
    assert "256 kB: pass a larger batch" in " ".join(str(found).split())
    with pytest.raises(ValueError, match="256 kB"):
        found.plot("memory.png")
    with pytest.raises(RuntimeError, match="samples have no buffer .* memory.measure_step"):
        ct.memory.predict_peak(model, 4)


def test_a_compressed_model_stays_compressed_after_a_report():
    model = compiled(small_cnn())
    ct.compress_model(model)
    ct.memory.report(model, 8)
    model.train_on_batch(*random_batch(model, 8))
    assert all(s.read_state().stream_bytes > 0 for s in instrumentation(model).sites().values())


def test_random_batches_fit_the_model():
    tokens = keras.Input((5,), dtype="int32", name="tokens")
    values = keras.Input((4,), name="values")
    a = layers.Dense(3)(layers.Flatten()(layers.Embedding(2, 4)(tokens)))
    model = keras.Model([tokens, values], [a, layers.Dense(2)(values)])
    model.compile("sgd", ["sparse_categorical_crossentropy", "mse"])
    x, y = random_batch(model, 6)
    assert [t.shape for t in x] == [(6, 5), (6, 4)] and x[0].dtype == tf.int32
    assert int(tf.reduce_max(x[0])) == 1
    assert [t.shape for t in y] == [(6,), (6, 2)]
    model.train_on_batch(x, y)


def test_random_targets_are_labels_for_a_function_that_takes_no_values():
    def loss(y, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y, y_pred)

    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax")])
    for given, shape in (
        (lambda y, y_pred: loss(y, y_pred), (6,)),
        (lambda y, y_pred: abs(y - y_pred), (6, 3)),
    ):
        model.compile("sgd", given)
        x, y = random_batch(model, 6)
        assert y.shape == shape
        model.train_on_batch(x, y)


def test_saved_bytes_of_the_fused_normalization():
    model = compiled(small_cnn())
    ct.compress_model(
        model, storage=lambda layer: "fused" if isinstance(layer, layers.BatchNormalization) else "keep"
    )
    x, y = images(8)
    assert ct.memory.saved_bytes(model, tf.constant(x), tf.constant(y)) > 8 * 16 * 16 * 32 * 4


class Unbuilt(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv, self.flat, self.head = layers.Conv2D(8, 3), layers.Flatten(), layers.Dense(10)

    def call(self, x):
        return self.head(self.flat(self.conv(x)))


@pytest.mark.long("AdaptiveBatchSize")
@pytest.mark.parametrize("first", ["measure_step", "AdaptiveBatchSize"])
def test_a_model_that_is_built_by_its_first_step(first):
    model = compiled(Unbuilt())
    ct.compress_model(model)
    x, y = images(8)
    callbacks = []
    if first == "measure_step":
        assert ct.memory.measure_step(model, x, y, steps=1).saved_bytes > 0
    else:
        callbacks = [ct.AdaptiveBatchSize(limit_bytes=10**9, max_batch=8)]
    history = model.fit(ct.elastic_batch((x, y), 4), epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    assert np.all(np.isfinite(history.history["loss"]))


def test_wrappers_let_go_of_their_inputs_in_eager_steps():
    def held_bytes(wrap):
        x = tf.random.stateless_normal([64, 64, 64, 8], seed=(1, 2))
        parts = [
            layers.Conv2D(8, 3, padding="same"),
            layers.Activation("gelu"),
            layers.Conv2D(8, 3, padding="same"),
        ]
        model = keras.Sequential([keras.Input((64, 64, 8)), *map(wrap, parts)])
        model(x[:1])
        gc.collect()
        resting = tf.config.experimental.get_memory_info(ct.memory.device())["current"]
        with tf.GradientTape() as tape:
            y = model(x, training=True)
        gc.collect()
        held = tf.config.experimental.get_memory_info(ct.memory.device())["current"] - resting
        del tape, y
        return held

    def usual_bytes(wrap):  # what earlier tests leave behind may be freed while one of them measures
        return statistics.median(held_bytes(wrap) for _ in range(3))

    # TensorFlow's eager custom_gradient keeps each output: those, and streams.
    assert usual_bytes(ct.Compress) < 0.6 * usual_bytes(lambda layer: layer)


def test_the_best_fit_heap():
    heap = allocator_model.BestFitHeap()
    first, second = heap.allocate(1000), heap.allocate(300_000)
    assert heap.used_bytes == 1024 + 300_032  # 256 bytes are the unit
    heap.release(second)
    assert heap.allocate(200_000) == second  # with its other neighbour it is one chunk again, and split
    assert heap.used_bytes == 1024 + 200_192
    third = heap.allocate(1_500_000)
    heap.release(third)
    assert heap.allocate(1_400_000) == third
    wasted = heap.used_bytes - 1024 - 200_192 - 1_400_064
    assert wasted > 400_000  # less than half would be left: the chunk is given out whole
    heap.release(third)
    heap.release(first)
    assert heap.allocate(900) == first


def event(op, size, address):
    return trace.AllocationEvent(0.0, 1024 * size, 0, address, op, "output", "", "", 1024 * abs(size))


def test_levels_over_time_are_the_highest_of_each_part():
    """Up to 3 within the first half, down to 1 for the second, which ends at 2; over a resting level of 5."""
    times_and_levels = ((0.0, 6), (0.1, 8), (0.2, 6), (1.0, 7))
    events = tuple(
        event("a", 1, k)._replace(time_s=t, level_bytes=b) for k, (t, b) in enumerate(times_and_levels)
    )
    assert trace.Trace(5, events).levels(2) == [3, 2]
    assert trace.Trace(5, events).levels(4) == [3, 1, 1, 2]


def test_a_predicted_peak_is_found_where_it_lies_at_that_batch():
    def step(batch):
        """A buffer of 100 kB a sample, then, after its release, one of 1 MB."""
        return trace.Trace(
            0, (event("a", 100 * batch, 1), event("", -100 * batch, 1), event("b", 1000, 1), event("", -8, 9))
        )

    assert predict.peak_at(5, step(2), step(4), (2, 4)) == 1000 * 1024
    assert 5000 * 1024 <= predict.peak_at(50, step(2), step(4), (2, 4)) < 2 * 5000 * 1024


def test_saved_tensors_too_small_for_a_trace_count_from_the_ones_before_to_the_ones_after():
    def step(batch):
        """Three buffers that are held, a, b and c; then the last one is released, and the others around d."""
        made = [event(op, 300 * batch, number) for number, op in enumerate("abc", 1)]
        return trace.Trace(
            0,
            (*made, event("", -300 * batch, 3), event("", -300 * batch, 2), event("d", 1000 * batch, 4))
            + (event("", -1000 * batch, 4), event("", -300 * batch, 1)),
        )

    def saved(op, size):
        return SavedTensor("", op, "compress", (), "float32", 1024 * size, 0)

    recorded = [saved(op, 300 * 4) for op in "abc"]
    peaks = {
        place: predict.peak_at(
            8, step(2), step(4), (2, 4), [*recorded[:place], saved("tiny", 100), *recorded[place:]]
        )
        for place in range(4)
    }
    without = predict.peak_at(8, step(2), step(4), (2, 4))
    # What is made before b is held until after b is released, and so is alive beside d.
    assert peaks[0] - without == peaks[1] - without == 2 * 100 * 1024
    assert peaks[2] == peaks[3] == without


@pytest.mark.long("False")
@pytest.mark.parametrize("compress", [False, True])
def test_predicted_peak(compress):
    model = chain(6, size=64)
    if compress:
        ct.compress_model(model)
    x = np.random.default_rng(0).normal(size=(32, 64, 64, 32)).astype("float32")
    y = np.zeros((32, 32), "float32")
    measured = ct.memory.measure_step(model, x, y).peak_bytes
    # A small step may run two operations in the other order, which is one tensor more or less alive.
    one_tensor = x.nbytes if compress else 0
    np.testing.assert_allclose(ct.memory.predict_peak(model, 32, x, y), measured, rtol=0.15, atol=one_tensor)
    with pytest.raises(ValueError, match="at least 8"):
        ct.memory.predict_peak(model, 32, x[:3], y[:3])


def test_what_an_optimizer_makes_is_an_update_whatever_its_name():
    for name in ("adam", "adam_1"):  # as Keras names a second one
        model = small_cnn()
        model.compile(keras.optimizers.Adam(name=name), "mse", jit_compile=False)
        classify = explain.Classifier(model)
        made = trace.AllocationEvent(0.0, 8, 8, 0, f"{name}/Square", "output", "float", "[3,3]", 8)
        assert classify(made) == explain.UPDATE
