"""The folder as a whole: a test here calls each name, and each private part stands with the versions it was seen in."""

import ast
import re
from pathlib import Path

import pytest

from tf_comptrain import _keras

FOLDER = Path(_keras.__file__).parent
MODULES = sorted(FOLDER.glob("[!_]*.py"))
# Names that no test has to call, with the reason.
NOT_CALLED: dict = {}
# Releases of which somebody has looked at the private parts: those that the two lanes install.
SEEN = {"Keras": {"3.15", "2.15"}, "TensorFlow": {"2.21", "2.15"}}
INTERNALS = re.compile(r"(keras\.src|tensorflow\.(compiler|core|python|tsl))\b")
NAMED_TUPLE = {"_replace"}


def exported():
    tree = ast.parse((FOLDER / "__init__.py").read_text())
    nodes = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    own = [node for node in nodes if node.module.startswith("tf_comptrain._keras.")]
    return {alias.name for node in own for alias in node.names}


def _of_keras(node):
    return (
        {node.attr}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "_keras"
        else set()
    )


def called_in_tests():
    """Functions where they are called, in `with` or as decorators too; of others (a flag, a class) what is read."""
    found = set()
    for path in Path(__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                found |= _of_keras(node.func)
            elif isinstance(node, ast.FunctionDef):
                found |= set().union(*map(_of_keras, node.decorator_list))
            else:
                found |= {name for name in _of_keras(node) if _is_value(getattr(_keras, name))}
    return found


def _is_value(thing):
    return isinstance(thing, type) or not callable(thing)


def test_each_name_is_called():
    names = exported()
    assert len(names) > 100 and set(NOT_CALLED) <= names
    assert sorted(names - set(NOT_CALLED) - called_in_tests()) == []


def _private(name):
    return isinstance(name, str) and re.fullmatch(r"_(?!_|comptrain)\w+", name) and name not in NAMED_TUPLE


def _made_here(tree):
    """Private names of the module's own: functions, classes, variables, attributes of self."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} if ast.unparse(node.value) == "self" else set()
    return found


def _imported(tree):
    """What is imported from TensorFlow's and Keras' internals, by the name that it has there."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in nodes if INTERNALS.match(node.module) for alias in node.names}


def private_parts(tree, node):
    """Private attributes that a function or class reads, sets or names in a string: x._y, getattr(x, "_y")."""
    found = set()
    for part in ast.walk(node):
        name = part.attr if isinstance(part, ast.Attribute) else getattr(part, "value", None)
        if isinstance(part, (ast.Attribute, ast.Constant)) and _private(name):
            found.add(name)
    return found - _made_here(tree)


def paragraph(node):
    """The one of the docstring that begins with "Private:"; empty where there is none."""
    paragraphs = re.split(r"\n\s*\n", ast.get_docstring(node) or "")
    return next((" ".join(text.split()) for text in paragraphs if text.startswith("Private: ")), "")


def named(node):
    """The last part of each name in the paragraph: of `Model._compute_loss` the attribute."""
    return {part.rpartition(".")[2] for part in re.findall(r"`([\w.]+)`", paragraph(node))}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_private_parts_are_named(path):
    tree = ast.parse(path.read_text())
    everywhere = named(tree)
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            parts = private_parts(tree, node)
            missing = parts - named(node) - everywhere
            assert not missing, f'{path.name}: "Private:" of {node.name} does not name {sorted(missing)}'
            left = (
                {name for name in named(node) if _private(name)} - parts - _imported(tree) - _made_here(tree)
            )
            assert not left, f"{path.name}: {node.name} names {sorted(left)}, which it does not use"
    texts = [
        paragraph(node) for node in (tree, *tree.body) if isinstance(node, (ast.Module, ast.FunctionDef))
    ]
    missing = _imported(tree) - set(re.findall(r"\w+", " ".join(texts)))
    assert not missing, f'{path.name}: no "Private:" names {sorted(missing)}, which is imported'


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_private_parts_have_versions(path):
    """Private: `Model._x` (Keras 3.15, 2.15); `Graph._y` (TensorFlow 2.21, 2.15)."""
    tree = ast.parse(path.read_text())
    for node in (tree, *(n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)))):
        text = paragraph(node)
        for group in text.removeprefix("Private: ").rstrip(".").split("; ") if text else ():
            match = re.fullmatch(r"`.+ \((Keras|TensorFlow) ([\d., ]+)\)", group)
            assert match, f"{path.name}: {group}"
            assert set(match[2].split(", ")) <= SEEN[match[1]], f"{path.name}: {group}"
