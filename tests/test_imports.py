"""Which part may use which: the layers of docs/design.md, read from the sources."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tf_comptrain"

# Every arrow: what each folder uses, all of it above; BASE is what lies beside the folders, and uses none.
BASE = ("arguments", "backend", "lazy", "native", "processes", "version")
USES = {
    "render": "",
    "planner": "base render",
    "theory": "",
    "_keras": "base",
    "codecs": "base",
    "storage": "base _keras codecs",
    "graph": "base _keras codecs storage",
    "rules": "base _keras storage",
    "compression": "base render theory _keras codecs storage graph rules",
    "memory": "base render _keras storage graph compression",
    "placement": "base planner _keras codecs storage graph compression memory",
    "model_planning": "base render planner _keras codecs storage graph compression memory placement",
    "callbacks": "base render theory _keras codecs compression memory",
    "training": "base _keras compression memory placement callbacks",
    "distribute": "base _keras compression placement training",
    "study": "base render _keras codecs storage compression memory",
    "cli": "base render _keras codecs storage memory model_planning distribute study",
}
MOST_ARROWS = 80
# Pure Python and NumPy: usable, and testable, without TensorFlow.
PURE = ("render", "theory", "planner")
FRAMEWORKS = ("tensorflow", "keras", "tensorflow_addons", "tf_keras")
# Keras and TensorFlow change their internals; one folder keeps up with them.
INTERNALS_FOLDER = "_keras"
INTERNALS = (
    "keras.src", "tensorflow.compiler", "tensorflow.core", "tensorflow.python", "tensorflow.tsl", "tf_keras.src",
)  # fmt: skip
# What NamedTuples document under names with an underscore.
NAMED_TUPLE = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(p): p for p in sorted(PACKAGE.rglob("*.py"))}


def part_of(module: str) -> str:
    """tf_comptrain.rules.linear -> rules; tf_comptrain.arguments -> base; of the package itself ""."""
    part = (module.split(".") + [""])[1]
    return "base" if part in BASE else part


def arrows_of(folder: str) -> set:
    """The parts that a folder's modules import."""
    used = {part_of(name) for m in MODULES if part_of(m) == folder for name in own_imports(m)}
    return used - {folder}


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

    def visit_Call(self, node):
        """lazy_names(package, {"planner.plan": ("Plan",)}): what is imported later."""
        if ast.unparse(node.func) == "lazy_names" and isinstance(node.args[1], ast.Dict):
            for module, names in ast.literal_eval(node.args[1]).items():
                self.found += [(node.lineno, f"{PACKAGE.name}.{module}.{name}") for name in names]
        self.generic_visit(node)


def imports_of(module: str) -> list:
    path = MODULES[module]
    visitor = _Imports(module, path.name == "__init__.py")
    visitor.visit(ast.parse(path.read_text()))
    return visitor.found


@functools.cache
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


def test_every_folder_has_a_place():
    assert {part_of(m) for m in MODULES} == {"", "base", *USES}, "give it one here and in docs/design.md"


@pytest.mark.parametrize("folder", ["base", *USES])
def test_arrows_are_known_and_point_one_way(folder):
    uses = USES.get(folder, "").split()
    assert arrows_of(folder) == set(uses), 'of the whole package ("") import the module that is meant'
    above = list(USES)[: list(USES).index(folder)] if folder in USES else []
    assert set(uses) <= {"base", *above}


def test_arrows_are_few():
    assert sum(len(uses.split()) for uses in USES.values()) <= MOST_ARROWS


@pytest.mark.parametrize("module", [m for m in MODULES if m != PACKAGE.name])
def test_no_modules_of_a_folder_need_each_other(module):
    """Imports inside of functions count: they hide a cycle and do not end it."""
    folder = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]

    def beside(name: str) -> set:
        return {n for n in own_imports(name) - {name, folder} if n.rpartition(".")[0] == folder}

    seen, waiting = set(), list(beside(module))
    while waiting:
        name = waiting.pop()
        assert name != module, f"{module} needs itself, by way of {sorted(seen)}"
        seen.add(name)
        waiting += beside(name) - seen


# What a reader takes in. Those named are larger, up to the second number, and leave the list once they are not.
LINES, LARGE_LINES = 400, 500
LARGE_MODULES = {
    f"tf_comptrain.{name}" for name in ("callbacks.adaptive_error_bound", "training.resilient_fit")
}
FILES, LARGE_FILES = 20, 25
LARGE_FOLDERS = {"planner"}


def test_modules_are_read_in_one_sitting():
    lines = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {module for module, n in lines.items() if n > LINES} == LARGE_MODULES
    assert max(lines.values()) <= LARGE_LINES


def test_folders_are_taken_in_at_a_glance():
    files = {p.parent.name: len(list(p.parent.glob("*.py"))) for p in MODULES.values()}
    assert {folder for folder, n in files.items() if n > FILES} == LARGE_FOLDERS
    assert max(files.values()) <= LARGE_FILES


def folders() -> list:
    return sorted({part_of(m) for m in MODULES} - {"", "base"})


@pytest.mark.parametrize("folder", folders())
def test_bazel_knows_what_a_folder_uses(folder):
    """A folder is a library; its deps are what its modules import, so that Bazel holds the order too."""
    names = {name for m in MODULES if part_of(m) == folder for name in own_imports(m)}
    build = (PACKAGE / folder / "BUILD").read_text()
    assert f'name = "{folder}"' in build
    labels = {f"//tf_comptrain/{part_of(name)}" for name in names if part_of(name) not in ("base", folder)}
    beside = {name for name in names if part_of(name) == "base"}
    labels |= {
        "//tf_comptrain:native" if name.endswith(".native") else "//tf_comptrain:base" for name in beside
    }
    assert set(re.findall(r'"(//tf_comptrain[^"]*)"', build)) == labels
    assert f'"//tf_comptrain/{folder}"' in (PACKAGE / "BUILD").read_text()


@pytest.mark.parametrize("package", [m for m, p in MODULES.items() if p.name == "__init__.py"])
def test_no_name_hides_a_module(package):
    """`import a.b` and `a.b` are the same thing."""
    modules = {m.rpartition(".")[2] for m in MODULES if m.rpartition(".")[0] == package}
    bound = set()
    for node in ast.walk(ast.parse(MODULES[package].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module != package:
            bound |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
    assert not modules & bound


@pytest.mark.parametrize("module", [m for m in MODULES if part_of(m) in PURE])
def test_theory_and_planner_need_no_tensorflow(module):
    for name, chain in reachable(module).items():
        for line, imported in imports_of(name):
            assert imported.split(".")[0] not in FRAMEWORKS, f"{' -> '.join(chain)}:{line} imports {imported}"


OUTSIDE = [m for m in MODULES if part_of(m) != INTERNALS_FOLDER]


@pytest.mark.parametrize("module", OUTSIDE)
def test_internals_are_imported_in_one_folder(module):
    for line, name in imports_of(module):
        internal = any(name == i or name.startswith(i + ".") for i in INTERNALS)
        private = name.split(".")[0] in FRAMEWORKS and re.search(r"\._(?!_)", name)
        assert not internal and not private, (
            f"{module}:{line} imports {name}: move that to {INTERNALS_FOLDER}"
        )


def _is_private(name: object) -> bool:
    return isinstance(name, str) and re.match(r"_(?!_)", name) is not None and name not in NAMED_TUPLE


def _made_here(tree: ast.Module) -> set:
    """Private names that a module gives to what is its own: functions, classes, variables, attributes of self."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
    return found


@pytest.mark.parametrize("module", OUTSIDE)
def test_private_attributes_are_the_modules_own(module):
    """x._y of any x: Keras' and TensorFlow's are for one folder, those of another module of ours for nobody."""
    tree = ast.parse(MODULES[module].read_text())
    made = _made_here(tree)
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "getattr",
            "setattr",
            "hasattr",
            "delattr",
        ):
            name = getattr(node.args[1], "value", None)
        assert not _is_private(name) or name in made, (
            f"{module}:{node.lineno} uses {ast.unparse(node)}: {INTERNALS_FOLDER} may, if Keras or TensorFlow has it"
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


@pytest.mark.parametrize("path", sources("cc/offload"))
def test_offload_includes_nothing_of_tensorflow(path):
    for mark, name in includes_of(path):
        assert mark == "<" or name.startswith(("cc/offload/", "cc/codec/")), f'{path.name} includes "{name}"'
        assert not re.match(r"(absl|Eigen|tensorflow|tsl|unsupported|xla)\b", name), f"{path.name}: <{name}>"


@pytest.mark.parametrize("path", sources("cc/ops"))
def test_ops_only_declare(path):
    for _, name in includes_of(path):
        assert not name.startswith("cc/kernels/"), f'{path.name} includes "{name}": kernels come after ops'


# Each of these takes longer to import than this package.
HEAVY = ("matplotlib", "pandas", "pyarrow", "scipy")


@pytest.mark.parametrize("module", MODULES)
def test_heavy_libraries_wait_until_they_are_used(module):
    tree = ast.parse(MODULES[module].read_text())
    at_the_top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [alias.name for node in at_the_top if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in at_the_top if isinstance(node, ast.ImportFrom) and not node.level]
    assert not [name for name in names if name.split(".")[0] in HEAVY]
