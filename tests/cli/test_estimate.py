"""`tf-comptrain estimate`, and the models that commands are given."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import cli
from tf_comptrain.cli import estimate, model_source
from tf_comptrain.memory import counters

SCRIPT = """
import numpy as np
import tf_comptrain as ct
from tensorflow import keras

WIDTH = 256

def build():
    parts = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((WIDTH,)), *parts, keras.layers.Dense(10)])
    model.compile("sgd", "mse", jit_compile=False)
    return model

def with_data():
    return build(), np.ones((3, WIDTH), "float32"), np.arange(30, dtype="float32").reshape(3, 10)

def not_compiled():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

def compressed():
    model = build()
    ct.compress_model(model)
    return model

def nothing():
    pass

def fails():
    open("/no/such/data")

def uneven():
    return build(), np.ones((3, WIDTH)), np.ones((2, 10))

def empty():
    return build(), np.ones((0, WIDTH)), np.ones((0, 10))

def no_arrays():
    return build(), iter([1])
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "own_training.py"
    path.write_text(SCRIPT)
    return path


def command(*arguments: str) -> int:
    return cli.run(cli.parse(["tf-comptrain", *arguments]))


def answer(script, *arguments: str) -> dict:
    worker = [sys.executable, "-m", "tf_comptrain.cli.estimate_worker", "--model", f"{script}:build"]
    worker += ["--image", "0", "--batch", "2048", *arguments]
    run = subprocess.run(worker, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.long
def test_plain_is_what_fit_takes(script):
    found = answer(script, "--way", "plain")
    assert [size for size, _ in found["line"]] == [1024, 2048]
    model, data = model_source.load(f"{script}:build").model, (tf.ones((2048, 256)), tf.zeros((2048, 10)))
    resting = counters.bytes_in_use()
    counters.reset_peak()
    model.fit(tf.data.Dataset.from_tensors(data).repeat(12), verbose=0)
    fitted = counters.peak_bytes() - resting
    # Of the process here the weights and the batch lay below.
    assert found["total_bytes"] == pytest.approx(fitted + found["resting_bytes"], rel=0.2)
    assert 0 < found["step_s"] < 60


@pytest.mark.long
def test_compressed_takes_less_and_xla_is_planned(script):
    plain, compressed = (answer(script, "--way", way, "--xla") for way in ("plain", "compressed"))
    assert compressed["line"][-1][1] < 0.8 * plain["line"][-1][1]
    for found in (plain, compressed):
        assert found["total_bytes"] >= 0.99 * found["line"][-1][1]  # the allocator rounds the plan up


@pytest.mark.long
@pytest.mark.parametrize("way", ["planned", "mixed precision", "gradient accumulation"])
def test_other_ways_run(way, script):
    limit = ["--limit", "30000000"] if way == "planned" else []
    found = answer(script, "--way", way, *limit)
    assert found["total_bytes"] > 0 and found["line"][-1][0] == 2048


@pytest.mark.long
def test_why_a_way_failed(script):
    """Keras' rematerialization takes no keyword arguments in a graph, and a Sequential model passes them."""
    assert "keywords arguments only when eager" in answer(script, "--way", "keras.RematScope")["failed"]


FAKE = {
    "plain": {"line": [[32, 500e6], [64, 900e6]], "total_bytes": 900e6, "resting_bytes": 100e6, "step_s": 2.0},
    "compressed": {"line": [[32, 200e6], [64, 300e6]], "total_bytes": 300e6, "resting_bytes": 100e6, "step_s": 2.1},
    "planned": {"line": [[64, 440e6]], "total_bytes": 440e6, "resting_bytes": 100e6, "step_s": 2.0},
    "mixed precision": {"failed": "no"},
    "keras.RematScope": {"line": [[16, 1e8], [32, 2e8]], "total_bytes": None, "resting_bytes": None, "step_s": None},
    "gradient accumulation": {"failed": "a batch of 63 cannot be made of 4 equal parts"},
}  # fmt: skip


@pytest.fixture
def fake(monkeypatch):
    def answer(_args, way, _engine, _plain):
        return {**FAKE[way], "room_bytes": 2_000_000_000}

    monkeypatch.setattr(estimate, "_answer", answer)


def test_the_table_has_what_each_way_takes(fake, capsys):
    assert command("estimate", "VGG16", "--batch", "64") == 0
    shown = capsys.readouterr().out
    assert "executor: 900 MB plain, 300 MB compressed (3.0 x less), step 1.05 of plain's" in shown
    assert "in 2 GB a batch of 152 plain, 608 compressed" in shown
    assert "~400 MB" in shown and "mixed precision: no" in shown


def test_the_better_engine_is_named_where_it_is_much(monkeypatch, capsys):
    def answer(_args, way, engine, _plain):
        more = {"executor": (1.0, 1.1), "XLA": (0.5, 1.0)}[engine]
        one = {**FAKE["compressed"], "total_bytes": 3e8 * more[0], "step_s": 2.0 * more[1]}
        return {**one, "room_bytes": 2_000_000_000}

    monkeypatch.setattr(estimate, "_answer", answer)
    assert command("estimate", "VGG16", "--batch", "64") == 0
    shown = capsys.readouterr().out
    assert "Compressed, XLA takes 2.0 x less memory than the executor: jit_compile=True." in shown
    assert "as fast as" not in shown  # a tenth


def test_json_has_every_way_and_engine(fake, capsys):
    assert command("estimate", "VGG16", "--batch", "64", "--memory", "1GB", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["memory_bytes"] == 1_000_000_000 and found["batch"] == 64
    assert {(row["way"], row["engine"]) for row in found["ways"]} == set(estimate._ORDER)
    largest = {row["way"]: row["largest_batch"] for row in found["ways"] if row["engine"] == "XLA"}
    assert largest == {**dict.fromkeys(FAKE), "plain": 72, "compressed": 288, "keras.RematScope": 160}
    assert {row["way"] for row in found["ways"]} == set(estimate.WAYS)


def test_nothing_is_begun_after_the_seconds(fake, monkeypatch, capsys):
    times = iter([0.0, 1.0, 130.0, 131.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times, 200.0))
    assert command("estimate", "VGG16", "--batch", "64", "--engine", "executor") == 0
    shown = capsys.readouterr().out
    assert "compressed: not measured within --seconds 120" in shown and "900 MB" in shown


def test_without_plain_there_is_no_success(monkeypatch, capsys):
    monkeypatch.setattr(estimate, "_answer", lambda *_: {"failed": "out of memory"})
    assert command("estimate", "VGG16", "--batch", "64") == 1
    assert "plain: out of memory" in capsys.readouterr().out


def test_a_picture(fake, tmp_path):
    path = tmp_path / "estimate.png"
    assert command("estimate", "VGG16", "--batch", "64", "--picture", str(path)) == 0
    assert path.stat().st_size > 10_000


def test_samples_of_the_user_are_repeated(script):
    loaded = model_source.load(f"{script}:with_data")
    x, y = loaded.batch(5)
    assert x.shape == (5, 256)
    np.testing.assert_array_equal(y[3], y[0])


def test_a_keras_file(tmp_path, script):
    path = str(tmp_path / "model.keras")
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(path)
    assert model_source.load(path, loss="mse").model.compiled
    with pytest.raises(model_source.SourceError, match="--loss"):
        model_source.load(path)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("missing.py:build", "no file 'missing.py'"),
        ("missing.keras", "no file 'missing.keras'"),
        ("resnet50", "ResNet50"),
        ("{script}:none", "has: build, compressed, empty, fails, no_arrays, not_compiled, nothing"),
        ("{script}:nothing", "must give a keras.Model"),
        ("{script}:not_compiled", "not compiled"),
        ("{script}:compressed", "must give the plain model"),
        ("{script}:fails", "failed in line 29 of 'own_training.py': FileNotFoundError"),
        ("{script}:uneven", r"as many samples in x as in y.*\[3, 2\]"),
        ("{script}:empty", "one at least"),
        ("{script}:no_arrays", "x and y as arrays"),
    ],
)
def test_a_source_that_is_none(source, says, script):
    with pytest.raises(model_source.SourceError, match=says):
        model_source.load(source.replace("{script}", str(script)))


def test_a_source_that_fails_ends_with_status_2_at_once(script, capsys):
    assert command("estimate", f"{script}:fails", "--batch", "8") == 2
    said = capsys.readouterr()
    assert said.err.count("FileNotFoundError") == 1 and "compressed" not in said.out


def test_a_missing_model_ends_with_status_2(capsys):
    assert command("estimate", "missing.py:build", "--batch", "8") == 2
    assert "missing.py" in capsys.readouterr().err
