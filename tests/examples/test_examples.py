"""Every example runs, in a process of its own, with settings that make it fast."""

import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from tf_comptrain.compression.report import Report, ReportRow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(script: str, *arguments: str) -> str:
    environment = dict(os.environ, PYTHONPATH=str(ROOT), COLUMNS="160")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_callback_and_wrapper():
    out = run("callback_and_wrapper.py", "--images", "400", "--epochs", "2")
    assert "AdaptiveBatchSize, epoch 2" in out
    assert "of the input's sigma" in out
    assert "MB wrapped" in out


@pytest.mark.long
def test_savedmodel_export(tmp_path):
    out = run("savedmodel_export.py", "--images", "200", "--out", str(tmp_path))
    assert out.count("largest difference") == 3


@pytest.mark.long
def test_distributed_in_stages(tmp_path):
    out = run("distributed.py", "--stages", "--images", "200", "--epochs", "1", "--out", str(tmp_path))
    assert "devices: 2" in out


@pytest.mark.long
def test_distributed(tmp_path):
    """By one process; tests/distribute has two."""
    out = run("distributed.py", "--images", "200", "--epochs", "1", "--out", str(tmp_path))
    assert "workers: 1" in out
    assert (tmp_path / "model.keras").exists() and (tmp_path / "checkpoint" / "training.ckpt").exists()


@pytest.mark.long
def test_demo(tmp_path):
    fast = "--offline --blocks 2 --train 192 --test 100 --epochs 1 --measure-batch 32 --limit-mb 30"
    out = run("demo.py", *fast.split(), "--out", str(tmp_path))
    assert "plain / compressed" in out
    assert "ResourceExhaustedError: memory limit of 30 MB exceeded" in out
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg") == 2 and "ResourceExhaustedError" in page
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_escapes_every_text(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo_report

    odd = "<b>&\"'"
    row = ReportRow(odd, "Conv2D", odd, odd, (1,), 1, 1, odd, odd)
    run = demo_report.Run([1.0], [0.5], [1.0], 1.0)
    limited = types.SimpleNamespace(
        limit_bytes=1, largest={"plain": 1, "compressed": 1}, batch=1, plain_error=odd, compressed_loss=1.0
    )
    args = types.SimpleNamespace(blocks=1, batch=1, measure_batch=1, codec=odd, error_bound=None)
    images = types.SimpleNamespace(source=odd, x_test=[0])
    runs = {"plain": run, "compressed": run}
    page = demo_report._page(args, runs, limited, Report("model", (row,)), images)
    assert odd not in page and "<b>" not in page
    assert page.count("&lt;b&gt;&amp;") == 9


def test_shipped_images():
    path = EXAMPLES / "data" / "fashion_mnist.npz"
    assert path.stat().st_size < 5_500_000
    with np.load(path, allow_pickle=False) as file:
        assert file["x_train"].shape == (8000, 28, 28) and file["x_test"].shape == (4000, 28, 28)
        assert set(file["y_train"]) == set(range(10)) == set(file["y_test"])
    assert "MIT License" in (path.parent / "LICENSE-fashion-mnist").read_text()
