"""Tables and lines as text: reports, plans, what commands print."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_FILE_WIDTH = 160  # of what is no terminal: there is none to fit into
_UNFOLDED = 10_000


def table_of(title: str, headings: Iterable[str], numbers: Collection[str] = ()) -> Table:
    """A table without rows.

    Args:
      title: As it is, without markup.
      headings: Of its columns.
      numbers: Those of columns that are set to the right.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold")
    return table


def as_text(parts: Iterable[Table | str], width: int | None = 130) -> str:
    """Tables and lines as they are printed, in columns of `width` characters; None: nothing is folded."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=width or _UNFOLDED)
    for part in parts:
        console.print(part, markup=False, highlight=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def show(*parts: Table | str) -> None:
    """Prints tables and lines; where the output is a file, a long cell is folded later than on a terminal."""
    from rich.console import Console

    console = Console(width=None if os.isatty(1) else _FILE_WIDTH)
    for part in parts:
        console.print(part, markup=False, highlight=False)


def complain(*lines: object) -> None:
    """Prints lines for the user's attention, beside the output."""
    from rich.console import Console

    console = Console(stderr=True)
    for line in lines:
        console.print(str(line), style="red", markup=False, highlight=False)
