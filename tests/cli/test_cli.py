"""The command line: doctor and bench step."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tensorflow import keras

from tf_comptrain import cli, native
from tf_comptrain.cli import bench, doctor


def command(*arguments: str) -> int:
    return cli.run(cli.parse(["tf-comptrain", *arguments]))


def test_doctor_says_what_works(capsys):
    assert command("doctor") == 0
    out = capsys.readouterr().out
    assert native.library_path().name in out.replace("\n", "")
    for word in ("Python", "TensorFlow", "Keras", "NumPy", "XLA lowering", "GPU kernels", "round trip"):
        assert word in out


def test_doctor_fails_when_the_library_does_not_load(monkeypatch, capsys):
    monkeypatch.setattr(native, "problem", lambda: "not built. [remedy] make build")
    monkeypatch.setattr(native, "is_loaded", lambda: False)
    assert command("doctor") == 1
    out = capsys.readouterr().out
    assert "broken" in out and "[remedy] make build" in out


def test_doctor_checks_the_bound():
    found = {finding.about: finding for finding in doctor.examine()}
    assert found["codec round trip"].ok


def test_doctor_names_the_engine_that_keras_chooses():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(loss="mse")
    found = {finding.about: finding.found for finding in doctor.examine()}
    assert found["engine of fit"].startswith("XLA" if model.jit_compile else "TensorFlow's executor")


def test_bench_step_json(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", "tf_comptrain.cli", "bench", "step"]
        + ["--model", "MobileNet", "--image", "32", "--batch", "2", "--steps", "1", "--json"]
        + ["--storage", "rebuild", "--codec", "rans"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout)
    assert list(results) == ["plain", "fused_bn", "compressed"]
    for found in results.values():
        assert list(found) == ["peak_bytes", "planned_bytes", "step_s", "saved_bytes"]
        assert found.pop("planned_bytes") is None  # on the executor
        assert all(value > 0 for value in found.values())
    assert results["compressed"]["saved_bytes"] < results["plain"]["saved_bytes"] / 2


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bench"],
        ["bench", "step", "--batch", "0"],
        ["bench", "step", "--steps", "x"],
        ["bench", "batch", "--codec", "x"],
        ["nothing"],
    ],
)
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command(*arguments)
    assert stopped.value.code == 2
    assert "usage: tf-comptrain" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ResNet5", "resnet50", "ResNet50 "])
def test_unknown_model(name, capsys):
    assert command("bench", "step", "--model", name) == 2
    err = capsys.readouterr().err
    assert "ResNet50," in err and repr(name) in err


class FakeWorker:
    """Answers without a process; dies where told to."""

    dies_at: dict = {}

    def __init__(self, variant, command):
        self.variant, self.asked = variant, 0

    def wait_until_ready(self):
        self._maybe_die()

    def step(self):
        self._maybe_die()

    def _maybe_die(self):
        if self.dies_at.get(self.variant) == self.asked:
            raise bench.WorkerError(f"{self.variant} died")
        self.asked += 1

    def measured(self):
        return bench.MeasuredVariant(100, [1.0] * (self.asked - 1), 50)

    def close(self):
        pass


def test_a_step_of_xla_has_its_planned_memory(monkeypatch, capsys):
    class Planned(FakeWorker):
        dies_at: dict[str, int] = {}

        def __init__(self, variant, command):
            super().__init__(variant, command)
            assert command[-1] == "--jit-compile"

        def measured(self):
            planned = 40 if self.variant == "compressed" else 80
            return bench.MeasuredVariant(100, [1.0], 50, planned_bytes=planned)

    monkeypatch.setattr(bench, "BenchWorker", Planned)
    assert command("bench", "step", "--model", "VGG16", "--steps", "1", "--jit-compile") == 0
    shown = capsys.readouterr().out
    assert "planned by XLA" in shown and "planned plain / compressed: 2.00" in shown


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_failed_variant_leaves_the_others(at, monkeypatch, capsys):
    monkeypatch.setattr(bench, "BenchWorker", FakeWorker)
    monkeypatch.setattr(FakeWorker, "dies_at", {"plain": at})
    assert command("bench", "step", "--model", "VGG16", "--steps", "3", "--json") == 1
    captured = capsys.readouterr()
    results = json.loads(captured.out)
    assert results["plain"] is None
    measured = {"peak_bytes": 100, "planned_bytes": None, "step_s": 1.0, "saved_bytes": 50}
    assert results["compressed"] == measured
    assert "plain died" in captured.err
    assert command("bench", "step", "--model", "VGG16", "--steps", "3") == 1
    assert "failed" in capsys.readouterr().out


def test_a_killed_process_is_named():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    os.kill(child.pid, signal.SIGKILL)
    assert "SIGKILL, which may mean out of memory" in bench.ending(child.wait())
    assert "status 3" in bench.ending(3)


def test_ratios_pair_neighbouring_steps():
    slow_then_fast = bench.MeasuredVariant(1, [2.0, 1.0, 1.0], 1)
    same_machine = bench.MeasuredVariant(1, [1.0, 0.5, 0.5], 1)
    assert bench.paired_ratio(slow_then_fast, same_machine) == 2.0
