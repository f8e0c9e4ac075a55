"""The command line: doctor, bench step, and what starts without TensorFlow."""

import argparse
import json
import os
import signal
import subprocess
import sys

import pytest
from tensorflow import keras

from tf_comptrain import cli, codecs, native, storage
from tf_comptrain.cli import bench, doctor, examination, options


def command(*arguments: str) -> int:
    return cli.run(cli.parse(["tf-comptrain", *arguments]))


def run_doctor(*arguments):
    command = [sys.executable, "-m", "tf_comptrain.cli", "doctor", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_doctor_says_what_works_and_nothing_else():
    run = run_doctor()
    assert (run.returncode, run.stderr) == (0, "")
    assert native.library_path().name in run.stdout.replace("\n", "")
    for word in ("Python", "TensorFlow", "Keras", "NumPy", "XLA lowering", "GPU kernels", "round trip"):
        assert word in run.stdout


@pytest.mark.long
def test_doctor_shows_tensorflows_log():
    assert "oneDNN" in run_doctor("--verbose").stderr


def examines(monkeypatch, code):
    monkeypatch.setattr(doctor, "_EXAMINATION", (sys.executable, "-c", code))


def test_doctor_shows_the_log_where_that_is_asked_for(monkeypatch, capfd):
    examines(monkeypatch, "import sys; print('a word of the log', file=sys.stderr)")
    for asked in ((), ("--verbose",)):
        assert command("doctor", *asked) == 0
        assert ("a word of the log" in capfd.readouterr().err) == bool(asked)


def test_doctor_fails_when_something_is_broken(monkeypatch, capsys):
    found = doctor.Finding("op library", "not built. [remedy] make build", ok=False)
    examines(monkeypatch, f"print('a line of another'); print(3); print({json.dumps(found._asdict())!r})")
    assert command("doctor") == 1
    out = capsys.readouterr().out
    assert "broken" in out and "[remedy] make build" in out and "another" not in out


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ModuleNotFoundError('no TensorFlow')", "no TensorFlow"),
        ("import sys, os; print('built for AVX', file=sys.stderr, flush=True); os.abort()", "by SIGABRT"),
        ("exit(3)", "it ended with status 3"),
    ],
)
def test_doctor_says_why_it_could_not_look(code, words, monkeypatch, capsys):
    examines(monkeypatch, f'print(\'{{"about": "Python", "found": "3"}}\', flush=True); {code}')
    assert command("doctor") == 1
    captured = capsys.readouterr()
    assert "Python" in captured.out and words in captured.out and not captured.err
    assert "AVX" not in code or "built for AVX" in captured.out


def test_doctor_names_a_library_that_does_not_load(monkeypatch):
    monkeypatch.setattr(native, "problem", lambda: "not built")
    monkeypatch.setattr(native, "is_loaded", lambda: False)
    found = {finding.about: finding for finding in examination.examine()}
    assert found["op library"].ok is False and found["op library"].found == "not built"
    assert found["compression"].found.startswith("not active")


def test_doctor_checks_the_bound():
    found = {finding.about: finding for finding in examination.examine()}
    assert found["codec round trip"].ok


def test_doctor_names_the_engine_that_keras_chooses():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(loss="mse")
    found = {finding.about: finding.found for finding in examination.examine()}
    assert found["engine of fit"].startswith("XLA" if model.jit_compile else "TensorFlow's executor")


@pytest.mark.long
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


def test_a_library_that_does_not_serve_is_one_sentence(monkeypatch, capsys):
    def fails(args):
        raise native.LibraryError("was built for TensorFlow 2.15. Run: make build")

    assert cli.run(argparse.Namespace(function=fails)) == 1
    assert capsys.readouterr().err == "was built for TensorFlow 2.15. Run: make build\n"


# What a user waits for before a word is shown: TensorFlow's import takes seconds.
WITHOUT_TENSORFLOW = {
    "help": "from tf_comptrain import cli; cli.parse(['tf-comptrain', '--help'])",
    "doctor": "from tf_comptrain import cli; cli.parse(['tf-comptrain', 'doctor'])",
    "calibrate": "from tf_comptrain import cli; cli.parse(['tf-comptrain', 'calibrate'])",
    "plan": "from tf_comptrain import cli; cli.parse(['tf-comptrain', 'plan', '--help'])",
    "bench step": "from tf_comptrain import cli; cli.parse(['tf-comptrain', 'bench', 'step', '--help'])",
    "bench batch": "from tf_comptrain import cli; cli.parse(['tf-comptrain', 'bench', 'batch', '--help'])",
    "study": "from tf_comptrain import cli; cli.parse(['tf-comptrain', 'study', '--help'])",
    "launch": "from tf_comptrain import cli\n"
    "cli.run(cli.parse(['tf-comptrain', 'launch', '--print', 'slurm', 'train.py']))",
    "package": "import tf_comptrain, tf_comptrain.distribute",
    "hardware": "from pathlib import Path; from tf_comptrain import planner\n"
    "planner.hardware_from_json(Path('examples/hardware/h200x4.json'))",
}


def test_names_of_options_are_those_of_the_modules():
    assert tuple(codecs.CODECS) == options.CODECS
    assert (storage.COMPRESS, storage.REBUILD, storage.KEEP) == options.STORAGES


@pytest.mark.parametrize("what", WITHOUT_TENSORFLOW)
def test_what_needs_no_tensorflow_imports_neither_it_nor_numpy(what, request):
    code = f"""
import sys
try:
    {WITHOUT_TENSORFLOW[what].replace(chr(10), chr(10) + "    ")}
except SystemExit:
    pass
assert not {{"tensorflow", "keras", "numpy", "scipy"}} & set(sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=request.config.rootpath, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_a_described_step_is_planned_without_tensorflow(request):
    code = """
import sys
sys.path.insert(0, "benchmarks/planner")
from synthetic import network
from tf_comptrain import planner
graph = network("unet", 20)
assert planner.plan_graph(graph, 10**12, budget_s=0.1).feasible
assert not {"tensorflow", "keras"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], cwd=request.config.rootpath, check=True)
