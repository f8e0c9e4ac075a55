"""Which part may use which: the layers of docs/design.md, read from the sources."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tf_comptrain"

# An arrow points to the left only.
LAYERS = (
    "native",
    "codecs",
    "storage",
    "graph",
    "rules",
    "compression",
    "memory",
    "theory",
    "callbacks",
    "training",
    "cli",
)
# Pure Python and NumPy: usable, and testable, without TensorFlow.
PURE = ("theory", "planner")
FRAMEWORKS = ("tensorflow", "keras", "tensorflow_addons", "tf_keras")
# Keras and TensorFlow change their internals; one package keeps up with them.
INTERNALS_MODULE = "_keras"
INTERNALS = ("keras.src", "tensorflow.python", "tf_keras.src")
# The objects of Keras and TensorFlow as this package names them.
FOREIGN_OBJECTS = ("keras", "layer", "model", "optimizer", "tensorflow", "tf")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(p): p for p in sorted(PACKAGE.rglob("*.py"))}


def part_of(module: str) -> str:
    """tf_comptrain.rules.conv -> rules"""
    return (module.split(".") + [""])[1]


class _Imports(ast.NodeVisitor):
    """Collects (line, dotted name) of every import outside `if TYPE_CHECKING`."""

    def __init__(self, module: str, is_package: bool):
        self.package = module if is_package else module.rpartition(".")[0]
        self.found: list = []

    def visit_If(self, node):
        if "TYPE_CHECKING" not in ast.unparse(node.test):
            self.generic_visit(node)

    def visit_Import(self, node):
        self.found += [(node.lineno, alias.name) for alias in node.names]

    def visit_ImportFrom(self, node):
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1] + ([base] if base else []))
        self.found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]


def imports_of(module: str) -> list:
    path = MODULES[module]
    visitor = _Imports(module, path.name == "__init__.py")
    visitor.visit(ast.parse(path.read_text()))
    return visitor.found


def own_imports(module: str) -> set:
    """The modules of this package that a module imports directly."""
    found = set()
    for _, name in imports_of(module):
        if name.split(".")[0] == PACKAGE.name:
            found.add(name if name in MODULES else name.rpartition(".")[0])
    return found


def reachable(module: str) -> dict:
    """Every module of this package that importing `module` needs, with the chain that leads there."""
    chains = {module: [module]}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        for name in own_imports(current) - set(chains):
            chains[name] = chains[current] + [name]
            waiting.append(name)
    return chains


@pytest.mark.parametrize("module", [m for m in MODULES if part_of(m) in LAYERS])
def test_arrows_point_one_way(module):
    layer = LAYERS.index(part_of(module))
    for name, chain in reachable(module).items():
        way = " -> ".join(chain)
        assert name != PACKAGE.name, f"{way}: import the module that is meant, not the whole package"
        if part_of(name) in LAYERS:
            assert LAYERS.index(part_of(name)) <= layer, f"{way}: {part_of(name)} is above {part_of(module)}"


@pytest.mark.parametrize(
    "module", [m for m in MODULES if part_of(m) in PURE and m != "tf_comptrain.theory.check"]
)
def test_theory_and_planner_need_no_tensorflow(module):
    for name, chain in reachable(module).items():
        assert name != PACKAGE.name, f"{' -> '.join(chain)}: the package itself imports TensorFlow"
        for line, imported in imports_of(name):
            assert imported.split(".")[0] not in FRAMEWORKS, f"{' -> '.join(chain)}:{line} imports {imported}"


@pytest.mark.parametrize("module", [m for m in MODULES if part_of(m) != INTERNALS_MODULE])
def test_keras_internals_stay_in_one_module(module):
    for line, name in imports_of(module):
        internal = any(name == i or name.startswith(i + ".") for i in INTERNALS)
        private = name.split(".")[0] in FRAMEWORKS and re.search(r"\._(?!_)", name)
        assert not internal and not private, (
            f"{module}:{line} imports {name}: move that to {INTERNALS_MODULE}"
        )
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr):
            owner = ast.unparse(node.value).rpartition(".")[2]
            assert owner not in FOREIGN_OBJECTS, (
                f"{module}:{node.lineno} uses {owner}.{node.attr}: only {INTERNALS_MODULE} may"
            )


def includes_of(path: Path) -> list:
    return re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', path.read_text(), re.MULTILINE)


def sources(folder: str) -> list:
    files = [p for p in (ROOT / folder).rglob("*") if p.suffix in (".h", ".cc", ".cu", ".cuh")]
    return [pytest.param(p, id=str(p.relative_to(ROOT))) for p in sorted(files)]


@pytest.mark.parametrize("path", sources("cc/codec"))
def test_codec_includes_nothing_of_tensorflow(path):
    for mark, name in includes_of(path):
        if mark == '"':
            assert name.startswith("cc/codec/"), f'{path.name} includes "{name}": only cc/codec/ may be used'
        else:  # <vector>, <cuda_runtime.h>, <sys/mman.h>; no library
            assert not re.match(r"(absl|Eigen|tensorflow|tsl|unsupported|xla)\b", name), (
                f"{path.name}: <{name}>"
            )


@pytest.mark.parametrize("path", sources("cc/ops"))
def test_ops_only_declare(path):
    for _, name in includes_of(path):
        assert not name.startswith("cc/kernels/"), f'{path.name} includes "{name}": kernels come after ops'
