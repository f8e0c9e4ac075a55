"""From JSON to NamedTuples: which fields there must be, and one error where they are not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

Record = TypeVar("Record", bound=tuple)


def load(source: Any, what: str) -> Any:
    """The JSON value of a file, of text, or of what has been read already.

    Args:
      source: A `Path`, text, or a value as `json.loads` returns it.
      what: What it describes, for the message.

    Raises:
      ValueError: It is no JSON.
    """
    if isinstance(source, Path):
        source = source.read_text()
    if not isinstance(source, str):
        return source
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:  # brackets within brackets without end
        rule = f"{what} must be JSON text ({error}), or the `pathlib.Path` of a file"
        raise ValueError(f"{rule}. Received: {source[:60]!r}.") from None


def record(kind: type[Record], value: Any, where: str) -> Record:
    """A NamedTuple of the fields of a JSON object; values are as they came.

    Raises:
      ValueError: It is no object, lacks a field without a default, or has one that is not known.
    """
    fields = cast(Any, kind)
    if not isinstance(value, dict):
        raise ValueError(
            f"`{where}` must be an object with the fields {_listed(fields._fields)}. "
            f"Received: {repr(value)[:60]} (of type {type(value).__name__})."
        )
    missing = [name for name in fields._fields if name not in value and name not in fields._field_defaults]
    unknown = [name for name in value if name not in fields._fields]
    if missing:
        raise ValueError(
            f"`{where}` must have {_listed(missing)}. Received: {_listed(value) or 'no fields'}."
        )
    if unknown:
        raise ValueError(
            f"`{where}` may have only the fields {_listed(fields._fields)}. Received: {_listed(unknown)}."
        )
    return kind(**value)


def row(kind: type[Record], value: Any, where: str) -> Record:
    """A NamedTuple of a JSON array that has all of its fields in their order.

    Raises:
      ValueError: It is no array, or one of another length.
    """
    values = items(value, where)
    fields = cast(Any, kind)._fields
    if len(values) != len(fields):
        raise ValueError(f"`{where}` must be [{_listed(fields)}]. Received: {values!r}.")
    return kind(*values)


def items(value: Any, where: str) -> list:
    """A JSON array.

    Raises:
      ValueError: It is none.
    """
    if not isinstance(value, (list, tuple)):
        raise ValueError(
            f"`{where}` must be a list. Received: {repr(value)[:60]} (of type {type(value).__name__})."
        )
    return list(value)


def text(value: Any, where: str) -> str:
    """Text that is not empty.

    Raises:
      ValueError: It is none.
    """
    if not isinstance(value, str) or not value:
        raise ValueError(
            f"`{where}` must be a name. Received: {repr(value)[:60]} (of type {type(value).__name__})."
        )
    return value


def unique(names: Iterable[Any], what: str) -> set[str]:
    """Names, as a set.

    Raises:
      ValueError: One is no name, or is there twice.
    """
    seen: set[str] = set()
    for name in names:
        if text(name, f"name in {what}") in seen:
            raise ValueError(f"`{what}` must have names of their own. Received: {name!r} twice.")
        seen.add(name)
    return seen


def _listed(names: Any) -> str:
    return ", ".join(map(str, names))
