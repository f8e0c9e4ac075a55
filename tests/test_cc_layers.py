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


# What makes bits of values: a codec, in whatever language its arithmetic is built.
_BITS = re.compile(
    r"\b(?:xla::)?(?:ShiftLeft|ShiftRight(?:Logical|Arithmetic)|Xor|BitcastConvertType|ReducePrecision)\("
)
# Masks, positions and scales of rows, in operations of XLA's, which cc/codec may not include.
CODECS_IN_KERNELS = {"cc/kernels/xla/packing.h", "cc/kernels/xla/row_scales.h"}


def test_kernels_leave_codecs_to_the_codecs():
    assert {
        str(path.relative_to(ROOT))
        for path in sources("cc/kernels")
        if _BITS.search(without_comments(path.read_text()))
    } == CODECS_IN_KERNELS


def test_files_are_read_in_one_sitting():
    lines = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in sources("cc")}
    assert {path for path, n in lines.items() if n > LINES} == LARGE_SOURCES
    assert max(lines.values()) <= LARGE_LINES


def test_folders_are_taken_in_at_a_glance():
    folders = {p.parent for p in sources("cc")}
    files = {str(f.relative_to(ROOT)): sum(p.is_file() for p in f.iterdir()) for f in folders}
    assert {folder for folder, n in files.items() if n > FILES} == LARGE_FOLDERS
    assert max(files.values()) <= LARGE_FILES


# What belongs together is a struct, which says whose memory it is.
PARAMETERS = 6
# CUDA kernels and their parts: what a struct would cost in registers and in parameters read again is not measured.
LONG_SIGNATURES = {
    "cc/codec/plane/gpu_decode.cu: Emit",
    "cc/codec/plane/gpu_encode.cu: EncodeAgain",
    "cc/codec/plane/gpu_encode.cu: EncodeTile",
    "cc/codec/plane/gpu_encode.cu: EncodeTiles",
    "cc/codec/plane/gpu_encode.cu: PackCodes",
    "cc/codec/rans/gpu_decode.cu: ReadCoded",
    "cc/codec/rans/gpu_encode.cu: CopyFromScratch",
    "cc/codec/rans/lane.h: Prepare",
    "cc/codec/rans/lane.h: PrepareAs",
    "cc/codec/rans/lane.h: ReadChunk",
    "cc/codec/stream/gpu_kernels.h: OpenHeader",
    "cc/codec/stream/gpu_kernels.h: OpenScales",
}
_PARAMETER = re.compile(
    r"(?:const\s+|typename\s+)*[\w:]+(?:<.*>)?(?:\s+const)?[\s*&]+(?:const\s+)?(?:__restrict__\s+)?\w*(?:\[.*\])?(?:\s*=.*)?",
    re.S,
)
_AFTER = re.compile(
    r"\s*(?:(?:const|noexcept|override|final)\b\s*)*(?:->[\w:<>*&\s]+)?(?:[{;]|:[^:]|=\s*(?:0|default|delete))"
)


def without_comments(text: str) -> str:
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", "", text, flags=re.M)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def arguments(text: str, start: int) -> tuple:
    """What is in the parentheses that open at start, by commas, and where they end."""
    parts, depth, angles, at = [""], 0, 0, start
    for at in range(start, len(text)):
        c = text[at]
        depth += (c in "([{") - (c in ")]}")
        angles += (c == "<") - (c == ">" and text[at - 1] != "-")
        if depth == 0:
            break
        if c == "," and depth == 1 and angles <= 0:
            parts.append("")
        elif at > start:
            parts[-1] += c
    return [p.strip() for p in parts if p.strip()], at + 1


def signatures(text: str) -> list:
    """(name, number of parameters) of the functions, and of pointers to functions, that a source declares."""
    text, found = without_comments(text), []
    for m in re.finditer(r"(\(\*\s*\w*(?:\[\w*\])?\)|~?\w+)\s*\((?!\s*\*)", text):
        parts, end = arguments(text, m.end() - 1)
        if _AFTER.match(text, end) and all(_PARAMETER.fullmatch(p) for p in parts):
            found.append((re.sub(r"\W", "", m[1]), len(parts)))
    return found


@pytest.mark.parametrize(
    "source,expected",
    [
        ("int F(int a, const std::map<int, int>& b = {});", [("F", 2)]),
        ("F(a, b);  // G(int a)", []),
        ("static inline bool G(const T* x, int64_t size[3]) const {\n  return H(x, 1);\n}", [("G", 2)]),
        ("using Fn = void (*)(int a, int b);\nvoid (*table[3])(const void* x);", [("", 2), ("table3", 1)]),
        ("Class::Class(int a, int b) : a_(a) {}", [("Class", 2)]),
    ],
)
def test_signatures_are_found(source, expected):
    assert signatures(source) == expected


def test_functions_take_few_parameters():
    long = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("cc")
        for name, count in signatures(path.read_text())
        if count > PARAMETERS
    }
    assert long == LONG_SIGNATURES
