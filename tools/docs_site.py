"""What MkDocs adds to the pages in docs/: the README as the first page, tables of CSV files, the API.

mkdocs.yml names this file as a hook. The pages read well without it: on a code host a table is a link to its
CSV file, and the API a list of names.
"""

from __future__ import annotations

import ast
import csv
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# Pages that stand at the top of the repository.
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#:\s]*)(#[^)\s]*)?\)")
TABLE = re.compile(r"^\[([^\]]+)\]\((tables/[\w-]+\.csv)\)$", re.M)
MODULE = re.compile(r"^## ([\w.]+)\n(.*?)(?=^## |\Z)", re.M | re.S)
UNIT = re.compile(r"(?<=\d) (?=(?:[kMG]?B|GB/s|m?s|M|bits|px)\b)")
NAME = re.compile(r"^\| `(\w+)` \|.*\n", re.M)


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages of the repository's top folder."""
    for name, page in TOP.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Puts tables and the API in, and turns links to other files of the repository into their paths."""
    if page.file.src_uri == "api.md":
        return api(markdown)
    folder = ROOT if page.file.src_uri in TOP.values() else DOCS
    markdown = TABLE.sub(lambda found: table(found[1], DOCS / found[2], found[2]), markdown)
    return LINK.sub(lambda found: _link(found, folder, files), markdown)


def table(title: str, path: Path, link: str) -> str:
    """A CSV file as a table, below its title and a link to the file; units stay with their numbers."""
    with path.open(newline="") as file:
        cells = [[UNIT.sub("\u00a0", cell.replace("|", "\\|")) for cell in row] for row in csv.reader(file)]
    head, *rows = cells
    lines = [head, ["---"] * len(head), *rows]
    return f"*{title}* ([CSV]({link}))\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _link(found: re.Match, folder: Path, files: Files) -> str:
    text, target, anchor = found[1], found[2], found[3] or ""
    if not target or files.get_file_from_path(target):
        return found[0]
    path = (folder / target).resolve()
    if path.parent == ROOT and path.name in TOP:
        return f"[{text}]({TOP[path.name]}{anchor})"
    if path.is_relative_to(DOCS):
        return found[0]  # MkDocs says what is wrong with it
    name = path.relative_to(ROOT).as_posix()
    return f"`{name}`" if text.strip("`") in (name, path.name, target) else f"{text} (`{name}`)"


def api(markdown: str) -> str:
    """The docstrings of the names in each module's table, in its place; of a name in two modules, once."""
    places: dict[tuple[str, str], str] = {}

    def module(found: re.Match) -> str:
        name, rows = found[1], found[2]
        own, elsewhere = [], []
        for member in NAME.findall(rows):
            place = places.setdefault(origin(name, member), f"{name}.{member}")
            if place == f"{name}.{member}":
                own.append(member)
            else:
                elsewhere.append(f"[`{member}`](#{place})")
        text = f"## {name}\n\n::: {name}\n    options:\n      members:\n"
        text += "".join(f"        - {member}\n" for member in own)
        return text + (f"\nAlso here: {', '.join(elsewhere)}.\n\n" if elsewhere else "\n")

    return MODULE.sub(module, markdown)


def origin(module: str, name: str) -> tuple[str, str]:
    """The module that defines a name which another one imports, and its name there; from the sources."""
    folder = ROOT.joinpath(*module.split("."))
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tf_comptrain"):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    submodule = ROOT.joinpath(*str(node.module).split("."), alias.name)
                    if submodule.is_dir() or submodule.with_suffix(".py").is_file():
                        return f"{node.module}.{alias.name}", ""
                    return origin(str(node.module), alias.name)
    return module, name
