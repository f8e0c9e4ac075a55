"""`tf-comptrain bench codec`: this library's codecs on the same arrays."""

import json

import numpy as np
import pytest

from tf_comptrain import cli, codecs
from tf_comptrain.cli import bench_codec


def run(*arguments):
    return cli.run(cli.parse(["tf-comptrain", "bench", "codec", *arguments]))


def test_every_codec_within_its_bound(capsys):
    assert run("--batch", "4", "--repeats", "1", "--eb-sigma", "0.1", "0.01", "--json") == 0
    rows = [bench_codec.CodecRow(**row) for row in json.loads(capsys.readouterr().out)]
    assert {(row.codec, row.data) for row in rows} == {
        (c, d) for c in codecs.CODECS for d in ("dense", "relu")
    }
    for row in rows:
        assert row.max_error <= row.eb * (1 + 1e-6)
        assert row.compress_gb_s > 0 and row.decompress_gb_s > 0
        assert (row.zeros_kept is None) == (row.data == "dense")
        assert row.ratio > (1.5 if row.data == "relu" else 0.9)
    assert sum(row.codec == "plane" for row in rows) == 4 and sum(row.codec == "zvc" for row in rows) == 2


def test_arrays_of_a_file(tmp_path, capsys):
    file = tmp_path / "some.npz"
    np.savez(
        file, wave=np.sin(np.linspace(0, 9, 90000)).reshape(300, 300), line=np.arange(9999.0), tiny=np.eye(3)
    )
    assert run("--data", str(file), "--codecs", "plane", "--repeats", "1") == 0
    shown = capsys.readouterr().out
    assert "some/wave" in shown and "line" not in shown and "tiny" not in shown
    np.savez(file, line=np.arange(9999.0))
    assert run("--data", str(file)) == 2
    assert "--data" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--eb-sigma", "0"], ["--codecs", "gzip"], ["--batch", "0"]])
def test_bad_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    assert caught.value.code == 2
