"""benchmarks/gpu/run.py, as far as it goes without a GPU."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "gpu" / "run.py"
spec = importlib.util.spec_from_file_location("gpu_run", SCRIPT)
gpu_run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpu_run)


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU here")
def test_without_a_gpu_it_says_so(tmp_path):
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path)], capture_output=True, text=True
    )
    assert run.returncode == gpu_run.NO_GPU
    assert "There is no GPU here" in run.stdout and not run.stderr


@pytest.mark.parametrize("most", [40, 100, 1000, 4321])
@pytest.mark.parametrize("error", [0.8, 1.0, 1.3])
def test_the_largest_batch_is_found_in_few_trials(most, error):
    """A card that ends at `most`, though peaks grow as if it ended at error * most."""
    memory, trials = 10**9, {}
    while (batch := gpu_run.next_batch(trials, memory)) is not None:
        trials[batch] = int(memory * batch / (error * most)) if batch <= most else 0
        assert len(trials) <= gpu_run.MOST_TRIALS
    fits = max(batch for batch, peak in trials.items() if peak)
    assert most >= fits > 0.9 * most - 16 or most < 64


def test_what_is_measured_is_not_repeated_and_what_is_missing_is_said(tmp_path, monkeypatch, capsys):
    asked = []

    def measurement(name, needs=()):
        return gpu_run.Measurement(name, needs, 100, lambda s: asked.append(name) or {"text": f"{name} done"})

    ones = [measurement("codec"), measurement("op", ("library",)), measurement("speed")]
    monkeypatch.setattr(gpu_run, "measurements", lambda out, quick: ones)
    monkeypatch.setattr(
        gpu_run.Machine, "lacks", lambda self, need: "no library" if need == "library" else ""
    )
    assert gpu_run.run_all(tmp_path, [], False, float("inf")) == 0
    assert gpu_run.run_all(tmp_path, [], False, float("inf")) == 0
    assert asked == ["codec", "speed"]
    assert "not run: op: no library" in capsys.readouterr().out
    (tmp_path / "speed.json").unlink()
    gpu_run.run_all(tmp_path, [], False, gpu_run.time.monotonic() + 20)
    assert asked == ["codec", "speed"]
    assert "1 left for lack of time (speed)" in capsys.readouterr().out


def test_a_worker_is_heard_among_what_libraries_print(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text("print('noise'); print('answer: ' + str([1] * 9000)); print('more')")
    monkeypatch.setattr(gpu_run, "__file__", str(script))
    assert gpu_run.worker({}, 60) == [1] * 9000
    script.write_text("print('no module')")
    assert gpu_run.worker({}, 60)["error"] == "it gave no answer: no module"


def test_what_a_command_started_ends_with_its_time(tmp_path):
    left = tmp_path / "left"
    result = gpu_run.run(["sh", "-c", f"(sleep 3; touch {left}) & sleep 60"], 0.5)
    assert result["timed_out"]
    gpu_run.time.sleep(3.5)
    assert not left.exists()


def test_a_measurement_that_breaks_is_noted_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    ones = [
        gpu_run.Measurement("codec", (), 100, lambda s: {}["peak"]),
        gpu_run.Measurement("speed", (), 100, lambda s: {"text": "done" * gpu_run.TAIL}),
    ]
    monkeypatch.setattr(gpu_run, "measurements", lambda out, quick: ones)
    assert gpu_run.run_all(tmp_path, [], False, float("inf")) == 1
    assert "failed: codec; to ask again delete" in capsys.readouterr().out
    assert len((tmp_path / "speed.json").read_text()) < 2 * gpu_run.TAIL


def test_trials_of_batches_are_in_the_tables_of_a_later_run(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_run, "nvidia_smi", lambda field: "1000")
    for batch, peak in ((32, 0), (64, 0)):
        (tmp_path / f"batch-Net-plain-{batch}.json").write_text(f'{{"peak_bytes": {peak}}}')
    names = [one.name for one in gpu_run.largest_batch(tmp_path, "Net", False, quick=False)]
    assert names == ["batch-Net-plain-32", "batch-Net-plain-64"]
    (tmp_path / "batch-Net-plain-64.json").unlink()
    assert next(gpu_run.largest_batch(tmp_path, "Net", False, quick=False)).name == "batch-Net-plain-32"
    monkeypatch.setattr(gpu_run, "nvidia_smi", lambda field: "[N/A]")
    assert [one.name for one in gpu_run.largest_batch(tmp_path, "Net", False, True)] == ["batch-Net-plain-32"]
