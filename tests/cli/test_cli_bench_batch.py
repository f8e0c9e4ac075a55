"""bench batch: what it asks for, and what it prints."""

import argparse
import json

import pytest

from tf_comptrain import cli
from tf_comptrain.cli import options
from tf_comptrain.memory import MaxBatch, Trial, TrialError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2 * 10**9),
        ("1.5 mb", 1_500_000),
        ("2GiB", 2**31),
        ("7", 7),
        ("3k", 3000),
        ("3 parsecs", None),
        ("GB", None),
        ("0 GB", None),
        ("3 IB", None),
    ],
)
def test_bytes(text, size):
    if size is None:
        with pytest.raises(argparse.ArgumentTypeError, match="2GB"):
            options.size_in_bytes(text)
    else:
        assert options.size_in_bytes(text) == size


@pytest.mark.parametrize(
    ("option", "value"),
    [("--image", "0"), ("--max-batch", "0"), ("--tolerance", "1"), ("--tolerance", "little")],
)
def test_bad_numbers(option, value, capsys):
    with pytest.raises(SystemExit):
        cli.parse(["tf-comptrain", "bench", "batch", option, value])
    assert f"Received: '{value}'" in capsys.readouterr().err


def search(build, limit, **kwargs):
    batch = {"plain": 10, "compressed": 45}[build.args[3]]
    kwargs["progress"]("a line")
    return MaxBatch(batch, batch + 1, limit, None, (Trial(batch, "ok", 5),))


def test_both_variants_and_their_ratio(monkeypatch, capsys):
    monkeypatch.setattr("tf_comptrain.memory.find_max_batch_size", search)
    command = ["tf-comptrain", "bench", "batch", "--model", "MobileNet", "--limit", "2GB"]
    assert cli.run(cli.parse(command)) == 0
    captured = capsys.readouterr()
    assert "compressed / plain: 4.5" in captured.out and "in 2 GB" in captured.out
    assert "plain: a line" in captured.err
    assert cli.run(cli.parse([*command, "--json"])) == 0
    assert json.loads(capsys.readouterr().out)["compressed"]["batch"] == 45


def test_compression_as_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "tf_comptrain.memory.find_max_batch_size",
        lambda *a, **k: asked.append(a[0].keywords) or search(*a, **k),
    )
    command = ["tf-comptrain", "bench", "batch", "--model", "MobileNet", "--limit", "2GB"]
    assert cli.run(cli.parse([*command, "--storage", "rebuild", "--codec", "rans"])) == 0
    assert asked == 2 * [{"codec": "rans", "storage": "rebuild"}]


def test_failures_have_a_status(monkeypatch, capsys):
    def broken(build, limit, **kwargs):
        raise TrialError("the child said so")

    monkeypatch.setattr("tf_comptrain.memory.find_max_batch_size", broken)
    assert cli.run(cli.parse(["tf-comptrain", "bench", "batch", "--model", "MobileNet"])) == 1
    assert "the child said so" in capsys.readouterr().err
    assert cli.run(cli.parse(["tf-comptrain", "bench", "batch", "--model", "nothing"])) == 2
