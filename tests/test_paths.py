"""Paths that the documentation names: each is there, and has the name that is looked for in it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = ("benchmarks", "cc", "docs", "examples", "tests", "tf_comptrain", "tools")
DOCUMENTS = [
    ROOT / name
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "README.md", "SECURITY.md", ".ci/run")
]
DOCUMENTS += sorted((ROOT / "docs").glob("*.md"))


def named(text: str) -> set:
    """Paths from the top of the repository, without those that have a placeholder or a pattern."""
    found = re.findall(rf"(?<![\w/.-])((?:{'|'.join(TOP)})/[\w./*-]*[\w*])", text)
    return {path for path in found if "*" not in path}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_are_there(document):
    missing = sorted(path for path in named(document.read_text()) if not (ROOT / path).exists())
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_modules_are_there(document):
    """`rewire.py`, `rules/substitutes.py`: of the package."""
    for path in re.findall(r"`((?:\w+/)*\w+\.py)`", document.read_text()):
        somewhere = [p for p in ROOT.glob("[a-z]*/**/*.py") if str(p).endswith(f"/{path}")]
        assert somewhere, f"{document.name} names {path}"


def test_what_a_newcomer_asks():
    """The table of CONTRIBUTING: twelve questions at least, with names that the files have."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| [^|]*\? \| (.*) \|$", text, re.M)
    assert len(rows) >= 12
    for row in rows:
        assert named(row), row
        for name, path in re.findall(r"`([\w.]+)` in `([\w./]+)`", row):
            assert all(part in (ROOT / path).read_text() for part in name.split(".")), row
