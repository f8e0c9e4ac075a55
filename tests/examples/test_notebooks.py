"""The notebooks run: their code, cell after cell, in their folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
# What each prints, beside what may be other numbers.
PRINTS = {
    "language_model": ("head Tensordot/MatMul", "compressed  peak", "times less"),
    "quickstart": ("compressed  saved", "losses ["),
    "memory_limits": ("plain: ", " microbatches", "out of memory, batch 32 -> 32 in 2 microbatches"),
    "study": ("times fewer bytes, gradients", "Held per sample"),
}


def cells(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_each_notebook_is_run():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(PRINTS)


def test_notebooks_have_no_outputs():
    """They would be of one machine."""
    for path in FOLDER.glob("*.ipynb"):
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs"), path.name


@pytest.mark.long
@pytest.mark.parametrize("name", ["quickstart", "language_model", "memory_limits", "study"])
def test_a_notebook_runs(name):
    code = "\n".join(cells(FOLDER / f"{name}.ipynb"))
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, timeout=900
    )
    assert run.returncode == 0, run.stderr
    for words in PRINTS[name]:
        assert words in run.stdout
