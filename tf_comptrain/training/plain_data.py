"""Plain data as JSON with NumPy arrays in it, and back: what a checkpoint can say of a callback."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf


def encode(value: Any) -> Any:
    """JSON with arrays in it that `decode` turns back into the same types.

    Plain data are None, numbers, text, arrays, eager tensors, and lists, tuples, named tuples and dicts of those; and
    functions, ufuncs and classes that can be imported, which are encoded by module and qualified name.

    Raises:
      TypeError: Not plain data.
    """
    if value is None or isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.array(value)
        dtype_code(array.dtype)
        return {"array": array, "scalar": isinstance(value, np.generic)}
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        return {"tensor": encode(np.asarray(value.numpy()))["array"]}
    if isinstance(value, dict):
        return {"dict": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [encode(item) for item in value]
        if type(value) is list:
            return items
        if type(value) is tuple:
            return {"tuple": items}
        if _is_named_tuple(type(value)):
            return {"named": _name_of(type(value)), "items": items}
    return {"name": _name_of(value)}


def decode(code: Any, find: Callable[[str, str], Any] | None = None) -> Any:
    """What `encode` was given.

    Args:
      code: From `encode`.
      find: From module and qualified name to the object. None: `find_named`.

    Raises:
      ValueError: It is no code, or names something that `find` does not find.
      TypeError: It is no code: an unhashable key.
    """
    find = find or find_named
    if code is None or isinstance(code, (bool, int, float, str)):
        return code
    if isinstance(code, list):
        return [decode(item, find) for item in code]
    parts: dict = code if isinstance(code, dict) else {}
    if parts.keys() == {"array", "scalar"} and isinstance(parts["array"], np.ndarray):
        return parts["array"][()] if parts["scalar"] else parts["array"].copy()
    if parts.keys() == {"tensor"} and isinstance(parts["tensor"], np.ndarray):
        return tf.constant(parts["tensor"])
    if parts.keys() == {"dict"}:
        return {decode(k, find): decode(v, find) for k, v in parts["dict"]}
    if parts.keys() == {"tuple"} and isinstance(parts["tuple"], list):
        return tuple(decode(item, find) for item in parts["tuple"])
    if parts.keys() == {"named", "items"} and isinstance(parts["items"], list):
        items = [decode(item, find) for item in parts["items"]]
        kind = find(*_checked_name(parts["named"]))
        return kind._make(items) if _is_named_tuple(kind) else tuple(items)
    if parts.keys() == {"name"}:
        return find(*_checked_name(parts["name"]))
    raise ValueError(f"no plain data: {str(code)[:80]}")


def find_named(module: str, name: str) -> Any:
    """The function, ufunc or class of that name, in a module that is loaded: nothing is imported.

    Raises:
      ValueError: There is none.
    """
    found = _lookup(module, name)
    if found is None or _lookup(*_own_name(found)) is not found:
        raise ValueError(f"{module}.{name} is not there")
    return found


def same(code: Any, other: Any) -> bool:
    """Whether two codes are equal, arrays included."""

    def digest(array: np.ndarray) -> list:
        content = np.ascontiguousarray(array).tobytes()
        return [dtype_code(array.dtype), array.shape, hashlib.sha256(content).hexdigest()]

    return json.dumps(code, default=digest) == json.dumps(other, default=digest)


def dtype_code(dtype: np.dtype) -> str:
    """Text that np.dtype turns back into this type; byte order included.

    Raises:
      TypeError: There is none: objects, structures, types without a size.
    """
    if dtype.itemsize and not dtype.hasobject:
        for code in (dtype.str, dtype.name):  # the first says byte order; bfloat16 has only the second
            try:
                if np.dtype(code) == dtype:
                    return code
            except TypeError:
                continue
    raise TypeError(f"not plain data: an array of {dtype}")


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_make")


def _name_of(value: Any) -> list[str]:
    """Module and qualified name under which an object is found again, the very same."""
    module, name = _own_name(value)
    if not (isinstance(module, str) and isinstance(name, str)) or _lookup(module, name) is not value:
        raise TypeError(f"not plain data: {type(value).__name__}")
    return [module, name]


def _own_name(value: Any) -> tuple[Any, Any]:
    # Before NumPy 2.2 a ufunc has neither a module nor a qualified name.
    module = getattr(value, "__module__", None) or type(value).__module__
    return module, getattr(value, "__qualname__", None) or getattr(value, "__name__", None)


def _lookup(module: Any, name: Any) -> Any:
    found: Any = sys.modules.get(module)
    for part in str(name).split("."):
        found = None if found is None else getattr(found, part, None)
    return found


def _checked_name(names: Any) -> tuple[str, str]:
    if not (isinstance(names, list) and [type(name) for name in names] == [str, str]):
        raise ValueError(f"no name: {str(names)[:80]}")
    return names[0], names[1]
