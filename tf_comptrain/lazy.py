"""Names that a package imports when they are first asked for (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]], folders: Sequence[str] = (), first: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package.

    Args:
      package: Its `__name__`.
      names: Module below `tf_comptrain` -> the names that the package has from it.
      folders: Names that are modules of the package itself.
      first: Module below `tf_comptrain` that is imported before the others: it says why these cannot be.
    """
    modules = {name: module for module, of_module in names.items() for name in of_module}

    def get(name: str) -> Any:
        if first and (name in folders or name in modules):
            importlib.import_module(f"tf_comptrain.{first}")
        if name in folders:
            return importlib.import_module(f"{package}.{name}")  # which makes it an attribute
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"tf_comptrain.{modules[name]}"), name)
        setattr(sys.modules[package], name, found)
        return found

    def names_of_package() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules, *folders})

    return get, names_of_package
