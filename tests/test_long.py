"""Which tests marked `long` run: of which folders, and of those which part."""

import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILE = """import pytest
@pytest.mark.long(but=["0"])
@pytest.mark.parametrize("case", range(9))
def test(case): pass
"""
FILES = ("test_top.py", "sub/test_in.py", "other/test_out.py")


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    shutil.copy(TESTS / "conftest.py", folder)
    for name in FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(FILE)

    def collect(*options):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", *options]
        run = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ)
        return {line for line in run.stdout.splitlines() if "::" in line}, run

    return collect


def cases_of(*files, cases=range(9)):
    return {f"{file}::test[{case}]" for file in files for case in cases}


SHORT = cases_of(*FILES, cases=[0])


def test_folders(collected):
    """What is in no folder is `.`"""
    assert collected("--long=sub,.")[0] == SHORT | cases_of(*FILES[:2])


def test_parts(collected):
    """Together they are all, and each is the same at every run; what is short is in each."""
    for part in range(2):
        expected = {case for case in cases_of(*FILES) if zlib.crc32(case.encode()) % 2 == part}
        assert SHORT < expected | SHORT < cases_of(*FILES)
        found, _ = collected("--long=all", f"--long-part={part}/2")
        assert found == SHORT | expected


@pytest.mark.parametrize("part", ["2/2", "a/b"])
def test_what_a_part_must_be(part, collected):
    run = collected(f"--long-part={part}")[1]
    assert run.returncode == 4 and "must be K/N, such as 0/4" in run.stderr


def test_the_part_is_said(collected):
    assert "long tests: sub, part 1 of 4" in collected("-v", "--long=sub", "--long-part=1/4")[1].stdout
