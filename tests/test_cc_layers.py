"""The folders of cc: which may include which, read from the BUILD files and held against the sources."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What a reader takes in. Those named are larger, up to the second number, and leave the list once they are not.
LINES, LARGE_LINES = 400, 500
LARGE_SOURCES = {"cc/codec/rans/gpu_encode.cu", "cc/codec/rans/lane.h", "cc/codec/stream/gpu_kernels.h"}
FILES, LARGE_FILES = 20, 30
LARGE_FOLDERS = {"cc/codec/layers", "cc/codec/plane", "cc/codec/rans", "cc/codec/stream"}


def sources(top: str) -> list:
    return sorted(p for p in (ROOT / top).rglob("*") if p.suffix in (".h", ".cc", ".cu"))


def depends(folder: Path) -> set:
    """The folders of cc that a folder's BUILD lets it use."""
    listed = re.search(r"deps = \[(.*?)\]", (folder / "BUILD").read_text() + "deps = []", re.S)
    names = re.findall(r'"([^"@]+)"', listed[1]) if listed else []
    return {n.lstrip("/") if "/" in n else f"cc/codec/{n}" for n in names}


def reachable(folder: str) -> set:
    found = {folder}
    for other in depends(ROOT / folder):
        found |= reachable(other)
    return found


@pytest.mark.parametrize("folder", sorted({str(p.parent.relative_to(ROOT)) for p in sources("cc")}))
def test_includes_follow_the_build_files(folder):
    if "/testing" in folder:
        return  # tests use what they test
    allowed = reachable(folder)
    for path in (ROOT / folder).iterdir():
        if path.suffix not in (".h", ".cc", ".cu") or path.stem.endswith("_test"):
            continue
        for name in re.findall(r'#include "(cc/[^"]+)"', path.read_text()):
            assert str(Path(name).parent) in allowed, (
                f"{folder}/{path.name} includes {name}: {folder}/BUILD has no such dependency"
            )


def test_kernels_leave_arithmetic_to_the_codecs():
    for path in sources("cc/kernels"):
        found = re.findall(r"std::(?:sqrt|exp|log|pow|fabs|abs|fmin|fmax|clamp)\b", path.read_text())
        assert not found, f"{path.name} computes ({', '.join(found)}): that belongs into cc/codec"


def test_files_are_read_in_one_sitting():
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources("cc")}
    assert {path for path, n in lines.items() if n > LINES} == LARGE_SOURCES
    assert max(lines.values()) <= LARGE_LINES


def test_folders_are_taken_in_at_a_glance():
    folders = {p.parent for p in sources("cc")}
    files = {str(f.relative_to(ROOT)): sum(p.is_file() for p in f.iterdir()) for f in folders}
    assert {folder for folder, n in files.items() if n > FILES} == LARGE_FOLDERS
    assert max(files.values()) <= LARGE_FILES
