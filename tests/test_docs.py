"""The documentation: commands parse, scripts, targets, extras and data are there, and pages are short."""

import csv
import json
import os
import re
import shlex
import statistics
from pathlib import Path

import pytest
from synthetic import network

from tf_comptrain import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("tf-comptrain", "python", "pip", "make")
# What stands for the reader's own files.
PLACEHOLDERS = re.compile(r"\[[^]]*\]|\.\.\.")
OF_ARGPARSE = ("-h", "--help")
# README and docs: COMPTRAIN_DOCS names another folder that has them, such as a checkout of other pages.
WRITTEN = Path(os.environ.get("COMPTRAIN_DOCS", ROOT))
WRITTEN = [WRITTEN / "README.md", *sorted((WRITTEN / "docs").glob("*.md"))]
MOST_WORDS, LINE, MEDIAN, LONGEST = 18_000, 100, 18, 30
# What `equivalence.py --report` writes.
GENERATED = re.compile(r"<!-- equivalence: begin.*?equivalence: end -->", re.S)


def commands():
    found = {}
    for page in PAGES:
        text = re.sub(r"^```\w.*?^```", "", page.read_text(), flags=re.M | re.S)
        lines = re.findall(r"^(?:    |\t)(\S.*)$", text, re.M) + re.findall(r"`([^`\n]+)`", text)
        for line in lines:
            line = re.split(r"\s{2,}#|\s# | && | > ", line.replace(".venv/bin/", ""))[0].strip()
            if line.split(" ")[0] in PROGRAMS and " " in line:
                found[f"{page.name}: {line}"] = line
    return found


COMMANDS = commands()


def test_commands_are_found():
    assert len(COMMANDS) > 60
    assert {line.split(" ")[0] for line in COMMANDS.values()} == set(PROGRAMS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_documentation_is_one(command):
    """Those of this package are parsed; of the others scripts, targets and extras are looked for."""
    line = COMMANDS[command]
    words = shlex.split(line) if line.startswith("pip") else shlex.split(PLACEHOLDERS.sub("", line))
    program, arguments = words[0], words[1:]
    if program == "tf-comptrain":
        if arguments[-1:] == ["--help"]:
            arguments = arguments[:-1] + ["FILE"]
        if "N" in arguments:
            arguments[arguments.index("N")] = "2"
        cli.parse(["tf-comptrain", *arguments])
    elif program == "python" and arguments[0] != "-m":
        script = ROOT / arguments[0]
        if not arguments[0].startswith(("benchmarks", "examples", "tools")):
            return  # a script of the reader's
        assert script.is_file()  # tests/test_docs_commands.py has it read its options
    elif program == "make":
        targets = [word for word in arguments if "=" not in word]
        makefile = (ROOT / "Makefile").read_text()
        assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)
    elif program == "pip":
        names = [word for word in arguments[1:] if not word.startswith("-")]
        extras = [extra for name in names for extra in re.findall(r"\[(.*)\]", name)[:1]]
        project = (ROOT / "pyproject.toml").read_text()
        # This package is on no index: it is installed from its sources.
        assert not any(name.startswith("tf_comptrain") for name in names)
        assert all(re.search(rf"^{one} = \[", project, re.M) for extra in extras for one in extra.split(","))


def test_the_planners_first_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.json").write_text(network("unet", 20).to_json())
    (code,) = re.findall(r"```python\n(from pathlib.*?)```", (ROOT / "docs" / "planner.md").read_text(), re.S)
    exec(compile(code.replace("budget_s=10", "budget_s=0.5"), "planner.md", "exec"), {})
    assert {"plan.png", "plan.json"} <= {path.name for path in tmp_path.iterdir()}


def test_every_arm_that_is_explained_has_data():
    text = (ROOT / "docs" / "accuracy.md").read_text()
    explained = re.search(r"^\*Arms\.\*.*?\n\n", text, re.M | re.S)[0]
    runs = (ROOT / "benchmarks" / "accuracy" / "results" / "equivalence.jsonl").read_text().splitlines()
    arms = {json.loads(run)["arm"] for run in runs}
    assert set(re.findall(r'"([\w-]+)"', explained)) == arms - {"plain"}


def test_the_readme_credits_what_the_sources_name():
    credits = (ROOT / "README.md").read_text().split("The ideas come from")[1]
    for name in ("COMET", "Gist", "AC-GC", "cDMA", "MemFlow", "CompTrain", "Chen et al."):
        assert name in credits


def words(text):
    """What is between blanks and has a letter or a digit: the rules of tables are no words."""
    return [word for word in text.split() if re.search(r"[^\W_]", word)]


def prose(text):
    """Lines of a page with "" where code, a table, a heading, an image or what a script writes stands."""
    text = re.sub(r"^```.*?^```", "", GENERATED.sub("", text), flags=re.M | re.S)
    lines, code = [], False
    for line in text.splitlines():
        code = bool(re.match(r"    \S", line)) and (code or not lines or lines[-1] == "") or code and not line
        alone = re.match(r"[|#!]", line) or re.fullmatch(r"\[[^]]+\]\([^)]+\)", line)
        lines.append("" if code or alone else line)
    return lines


def sentences(text):
    """Words of each sentence; an item of a list begins one, and three words or fewer are a label."""
    text = re.sub(r"^\s*([-*]|\d+\.) ", "\n\n", "\n".join(prose(text)), flags=re.M)
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("*", "")
    parts = (part for one in re.split(r"\n\s*\n", text) for part in re.split(r"(?<=[.!?])[\")]*\s+", one))
    return [found for found in map(words, parts) if len(found) > 3]


def test_all_pages_together_are_short():
    counts = {page.name: len(words(page.read_text())) for page in WRITTEN}
    assert sum(counts.values()) <= MOST_WORDS, counts


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_prose_lines_are_wrapped(page):
    assert [line for line in prose(page.read_text()) if len(line) > LINE and " " in line.strip()] == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_sentences_are_short(page):
    found = sentences(page.read_text())
    if found:  # docs/api.md may be lists alone
        assert statistics.median(map(len, found)) <= MEDIAN
        assert [" ".join(one) for one in found if len(one) > LONGEST] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "tables").glob("*.csv")), ids=lambda path: path.stem)
def test_a_table_is_shown_and_has_equal_rows(path):
    pages = [page for page in WRITTEN if f"(tables/{path.name})" in page.read_text()]
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    assert len(pages) == 1 and len({len(row) for row in rows}) == 1 < len(rows)
