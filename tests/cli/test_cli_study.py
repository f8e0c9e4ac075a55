"""tf-comptrain study: a file of a user's, from the command line to the files that are written."""

import pytest

from tf_comptrain import cli
from tf_comptrain.study import grid

FILE = """
import sys
sys.path.insert(0, {tests!r})
from study_nets import build, data
STUDY = {{"codecs": ["plane"], "bounds": (0.1, 0.4), "stages": ["late"], "batch_size": 16}}
"""


def command(*arguments):
    return cli.run(cli.parse(["tf-comptrain", "study", *map(str, arguments)]))


@pytest.fixture
def file(tmp_path, request):
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(tests=str(request.config.rootpath / "tests" / "study")))
    return path


def test_measures_prints_and_writes(file, capsys):
    assert command(file, "--epochs", "1") == 0
    folder = file.with_name("mine-study")
    out = capsys.readouterr().out
    assert "val_accuracy" in out and "plane" in out and "times fewer bytes" in out
    for name in ("report.html", "policy.json"):
        assert (folder / name).exists() and str(folder / name) in out
    assert command(file, "--epochs", "1", "--tolerance", "1e-9") == 1  # none fits, and none is left
    assert "No policy" in capsys.readouterr().out and not (folder / "policy.json").exists()
    assert command(file, "--epochs", "2") == 2  # another study
    assert "another `epochs`" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def build(): pass", "It lacks 'data'"),
        ("build = data = len; STUDY = {'seed': 1}", "It has 'seed'"),
        ("build = 1; data = len", "`build` must be a function"),
    ],
)
def test_a_file_that_does_not_do_is_said_why(text, problem, tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(text)
    assert command(path) == 2
    assert problem in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        (("--codecs", "jpeg"), "`codecs` must be among 'plane'"),
        (("--modes", "norm"), "`modes` must be among"),
        (("--stages", "end"), "`stages` must be among"),
        (("--tolerance", "-1"), "--tolerance must be above 0"),
    ],
)
def test_names_that_there_are_not(option, problem, file, capsys):
    assert command(file, *option) == 2
    assert problem in " ".join(capsys.readouterr().err.split())


def test_a_file_that_is_not_there(tmp_path, capsys):
    assert command(tmp_path / "none.py") == 2
    assert "There is no file" in capsys.readouterr().err


def test_a_training_that_diverges_is_said(file, capsys):
    text = file.read_text() + "build = (lambda make: lambda: at_rate(make(), 1e30))(build)\n"
    text += "def at_rate(model, rate):\n    model.optimizer.learning_rate = rate\n    return model\n"
    file.write_text(text)
    assert command(file, "--epochs", "1") == 2
    assert "ends with loss nan" in " ".join(capsys.readouterr().err.split())
    assert not (file.with_name("mine-study") / "policy.json").exists()


@pytest.mark.long
def test_a_cell_that_could_not_be_measured_is_said(file, capsys, monkeypatch):
    def fails(*_):
        raise OverflowError("too large")

    monkeypatch.setitem(grid.CONTESTANTS, "cosine", grid.Contestant(fails))
    assert command(file, "--epochs", "1", "--codecs", "cosine") == 1
    assert "could not be measured: OverflowError: too large" in " ".join(capsys.readouterr().err.split())
