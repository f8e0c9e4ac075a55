"""benchmarks/codec/compare.py: arrays, contenders, rows, table and plot."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "codec"
sys.path.insert(0, str(FOLDER))
import arrays as arrays_of  # noqa: E402
import compare  # noqa: E402
import contenders  # noqa: E402

ROW = ["codec", "data", "eb", "ratio", "compress_gb_s", "decompress_gb_s"]
ROW += ["compress_gb_s_all", "decompress_gb_s_all", "max_error", "zeros_kept"]
CONTENDERS = contenders.contenders()


def arrays():
    random = np.random.default_rng(0)
    dense = random.normal(size=(8, 12, 12, 32)).astype(np.float32)
    sparse = np.maximum(dense - 1, 0)
    long_runs = np.zeros((4, 70000), np.float32)
    long_runs[1] = 1
    long_runs[3, 1000::997] = -0.0
    return {"dense": dense, "sparse": sparse, "runs": long_runs, "ones": np.ones((2, 9), np.float32)}


@pytest.mark.parametrize("data", arrays())
@pytest.mark.parametrize("name", CONTENDERS)
def test_contenders_keep_what_they_promise(name, data):
    contender = CONTENDERS[name]
    x = arrays()[data]
    calls = contender.make(x, 0.05, 1)
    stream = calls.compress()
    x_hat = calls.values(calls.decompress(stream)).reshape(x.shape)
    assert calls.size(stream) > 0
    if contender.lossless:
        assert x_hat.view(np.uint32).tolist() == x.view(np.uint32).tolist()
    else:
        assert np.max(np.abs(x.astype(np.float64) - x_hat)) <= 0.05


@pytest.mark.long
def test_activations_are_what_they_are_called():
    found = arrays_of.activations(steps=2, batch=4, images=None)
    assert {name.split("/")[0] for name in found} == {"relu", "dense"}
    for name, x in found.items():
        assert x.dtype == np.float32 and x.shape[0] == 4
        assert (x.min() == 0) == name.startswith("relu")


def test_fields_scales_integers(tmp_path):
    file = tmp_path / "some.npz"
    packed = np.arange(64 * 64, dtype=np.int16).reshape(64, 64)
    np.savez(
        file, t=packed, t_scale=0.5, t_offset=3.0, u=packed * 1.5, line=np.arange(9999.0), tiny=np.eye(3)
    )
    found = arrays_of.fields(file)
    assert list(found) == ["field/some/t", "field/some/u"]
    np.testing.assert_array_equal(found["field/some/t"], packed * 0.5 + 3)
    np.savez(file, line=np.arange(9999.0))
    with pytest.raises(ValueError, match="--data"):
        arrays_of.fields(file)


@pytest.mark.long
def test_rows_and_plot(tmp_path):
    field = tmp_path / "field.npz"
    np.savez(field, wave=np.sin(np.linspace(0, 9, 90000)).reshape(300, 300))
    plot = tmp_path / "plot.png"
    command = [sys.executable, str(FOLDER / "compare.py"), "--train-steps", "1", "--batch", "4"]
    command += ["--repeats", "1", "--eb-sigma", "0.1", "0.01", "--codecs", "plane", "deflate", "memcpy"]
    command += ["--data", str(field), "--plot", str(plot), "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr
    rows = json.loads(run.stdout)
    assert len(rows) == 5 * (2 + 1 + 1)
    for row in rows:
        assert list(row) == ROW
        assert row["compress_gb_s"] > 0 and row["decompress_gb_s"] > 0
        assert row["max_error"] <= row["eb"] * (1 + 1e-6)
        assert (row["eb"] == 0) == (row["codec"] != "plane")
        assert (row["compress_gb_s_all"] is None) == (row["codec"] != "plane")
        assert row["zeros_kept"] == (1 if row["data"].startswith("relu/") else None) or "field" in row["data"]
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_what_is_not_installed_is_said(monkeypatch, capsys):
    missing = contenders.Contender(lambda *args: None, "no_such_package")
    monkeypatch.setattr(contenders, "contenders", lambda: {"other": missing})
    monkeypatch.setattr(arrays_of, "activations", lambda *args: {"relu/x": np.ones((2, 2), np.float32)})
    args = argparse.Namespace(train_steps=1, batch=1, images=None, data=[], codecs=None, eb_sigma=[0.1])
    args.repeats, args.json, args.plot = 1, True, None
    assert compare.main(args) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == [] and "other: not installed (pip install no_such_package" in err


def test_nothing_to_compress(capsys):
    assert compare.main(compare.parse(["--train-steps", "0"])) == 2
    assert "--data" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--eb-sigma", "0"], ["--codecs", "gzip"], ["--batch", "0"]])
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        compare.parse(arguments)
    assert caught.value.code == 2
