"""The public names: those of docs/api.md, with the names that saved models and checkpoints know them by."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import keras
import pytest

import tf_comptrain as ct

TEXT = (Path(__file__).resolve().parent.parent / "docs" / "api.md").read_text()
SECTIONS = re.findall(r"^## ([\w.]+)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
DOCUMENTED = {module: re.findall(r"^\| `(\w+)` \|", rows, re.M) for module, rows in SECTIONS}


@pytest.mark.parametrize("module", DOCUMENTED)
def test_public_names_are_the_documented_ones(module):
    package = importlib.import_module(module)
    assert sorted(DOCUMENTED[module]) == sorted(package.__all__)
    for name in package.__all__:
        found = getattr(package, name)
        if inspect.isclass(found) or inspect.isfunction(found) or inspect.ismodule(found):
            assert inspect.getdoc(found), f"{module}.{name} has no docstring"


def test_documentation_uses_public_names():
    """ct.X and ct.memory.X in README, docs and examples."""
    root = Path(__file__).resolve().parent.parent
    for path in (root / "README.md", *root.glob("docs/*.md"), *root.glob("examples/*.py")):
        for dotted in set(re.findall(r"\bct\.((?:\w+\.)*\w+)", path.read_text())):
            first, _, rest = dotted.partition(".")
            assert first in ct.__all__, f"{path.name}: ct.{dotted}"
            if rest and inspect.ismodule(getattr(ct, first)):
                assert rest.split(".")[0] in getattr(ct, first).__all__, f"{path.name}: ct.{dotted}"


@pytest.mark.parametrize(("wrapper", "module"), [(ct.Compress, "wrapper"), (ct.Recompute, "recompute")])
def test_models_saved_before_a_class_moved_load(wrapper, module):
    """Keras finds a registered class by its name; the module is where it was when the model was saved."""
    config = keras.saving.serialize_keras_object(wrapper(keras.layers.Dense(3)))
    assert config["registered_name"] == f"tf_comptrain>{wrapper.__name__}"
    loaded = keras.saving.deserialize_keras_object({**config, "module": f"tf_comptrain.{module}"})
    assert type(loaded) is wrapper and loaded.layer.units == 3


@pytest.mark.parametrize("module", ["tf_comptrain", "tf_comptrain.distribute", "tf_comptrain.planner"])
def test_names_that_are_imported_late_are_those_that_type_checkers_see(module):
    package = importlib.import_module(module)
    (block,) = (node for node in ast.parse(inspect.getsource(package)).body if isinstance(node, ast.If))
    seen = {alias.name for node in block.body for alias in node.names}
    assert seen == set(package.__all__) - {"__version__"} and seen <= set(dir(package))
    with pytest.raises(AttributeError, match=f"'{module}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018
