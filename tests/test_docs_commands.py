"""The commands of the documentation run: those that take seconds to their end, the others as far as stands below."""

import argparse
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import COMMANDS

from tf_comptrain import cli

ROOT = Path(__file__).resolve().parent.parent
LINES = sorted(set(COMMANDS.values()))
TRAIN = """
import json, os
print("worker", json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"])
"""

# Run to their end, in a folder of their own with a train.py: what they print.
RUN = {
    "python train.py": "worker 0",
    "tf-comptrain doctor": "op library",
    "tf-comptrain launch --hosts host0:2222,host1:2222 --index 0 train.py": r"\[0\] worker 0",
    "tf-comptrain launch --print kubernetes -n 8 train.py": "kind: Job",
    "tf-comptrain launch --print slurm -n 8 train.py": "#SBATCH --nodes=8",
    "tf-comptrain launch --print tf-config -n 8 train.py": "worker 7: TF_CONFIG=",
    "tf-comptrain launch -n 2 train.py": r"\[1\] worker 1",
    "tf-comptrain study --help": "--no-trainings",
}
# Of the others, with the reason: what runs of them instead.
MINUTES = "minutes to hours, or data of the reader's: the script is run up to where its own parser has read the options"
REASONS = {
    r"python benchmarks/accuracy/xla_losses.py": "trains for minutes, and has no options",
    r"python (benchmarks|examples)/(?!accuracy/xla_losses).*": MINUTES,
    r"python tools/build_native.py .*": "compiles for minutes; tests/test_build.py reads its targets",
    r"make .*": "builds, tests or trains for minutes: make says what it would run",
    r"pip .*": "installs, from the network: tests/test_docs.py looks for its extras",
    r"tf-comptrain (bench|plan|calibrate|estimate).*": "measures a machine for minutes; tests/cli runs smaller ones",
    r"tf-comptrain study (mine|examples/study_fashion).py": "trains for hours; tests/cli runs a smaller one",
    r"tf-comptrain launch -n N SCRIPT \[arguments\]": "says how the others are called",
}


class ReadError(Exception):
    """The options of a script are read."""


def words_of(line):
    return shlex.split(re.sub(r"\[[^]]*\]|\.\.\.", "", line))


def test_each_command_runs_or_has_a_reason():
    reasons = {
        line: [why for pattern, why in REASONS.items() if re.fullmatch(pattern, line)] for line in LINES
    }
    assert {line for line in LINES if not reasons[line]} == set(RUN)
    assert all(len(found) <= 1 for found in reasons.values())
    unused = [pattern for pattern in REASONS if not any(re.fullmatch(pattern, line) for line in LINES)]
    assert not unused


@pytest.mark.long("tf-comptrain doctor")
@pytest.mark.parametrize("line", RUN)
def test_a_command_runs(line, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    program, *arguments = words_of(line)
    if program == "python":
        subprocess.run([sys.executable, *arguments], check=True, timeout=60)
    else:
        try:
            assert cli.run(cli.parse(["tf-comptrain", *arguments])) == 0
        except SystemExit as end:  # of --help
            assert end.code == 0
    assert re.search(RUN[line], capfd.readouterr().out)


def scripts():
    return [
        line for line in LINES if any(why == MINUTES and re.fullmatch(p, line) for p, why in REASONS.items())
    ]


@pytest.mark.parametrize("line", scripts())
def test_a_script_reads_its_options(line, tmp_path, monkeypatch):
    """It is run as it stands, imports and all, until its parser has read what the documentation gives it."""
    script, *arguments = words_of(line)[1:]
    parse = argparse.ArgumentParser.parse_args

    def parsed(self, args=None, namespace=None):
        raise ReadError(parse(self, args, namespace))

    monkeypatch.chdir(tmp_path)
    for word in arguments:  # some look whether a file is there
        if "." in word or "/" in word or word == "codec_gpu":
            Path(word).parent.mkdir(parents=True, exist_ok=True)
            Path(word).touch()
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    folder = (ROOT / script).parent
    monkeypatch.setattr(sys, "path", [str(folder), str(folder.parent), str(ROOT), *sys.path])
    before, environment = set(sys.modules), dict(os.environ)
    try:
        with pytest.raises(ReadError):
            runpy.run_path(str(ROOT / script), run_name="__main__")
    finally:
        os.environ.clear()
        os.environ.update(environment)
        for name in set(sys.modules) - before:  # scripts beside it have the same names in other folders
            file = str(getattr(sys.modules[name], "__file__", ""))
            is_installed = "site-packages" in file or name.startswith("tf_comptrain")
            if str(ROOT) in file and not is_installed:
                del sys.modules[name]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("make")])
def test_make_knows_what_it_would_run(line):
    ran = subprocess.run(
        ["make", "--dry-run", *words_of(line)[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
