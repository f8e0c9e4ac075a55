"""Tables and lines as text, for reports."""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text


def table_of(title: str, headings: Iterable[str], numbers: Iterable[str] = ()) -> Table:
    """A table without rows.

    Args:
      title: As it is, without markup.
      headings: Of its columns.
      numbers: Those of columns that are set to the right.
    """
    table, numbers = Table(title=Text(title)), frozenset(numbers)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    return table


def as_text(tables: Iterable[Table], lines: Iterable[str], width: int = 130) -> str:
    """The tables, and the lines below them, as they are printed; `width` in characters."""
    out = io.StringIO()
    console = Console(file=out, width=width)
    for table in tables:
        console.print(table)
    for line in lines:
        console.print(line, markup=False)
    return out.getvalue()
