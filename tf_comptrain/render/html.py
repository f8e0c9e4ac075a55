"""HTML pages of one file, which need no network, and the tables in them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from html import escape

Cell = str | tuple[float, str] | None  # a number by its value, for sorting, and its text

# Of tables, by selector: for a page, and below one element for a part of another's page.
_TABLES = {
    ".wide": "overflow: auto; max-height: 32rem; border: 1px solid var(--line); border-radius: 6px",
    "table": "border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; min-width: 100%",
    "caption": "text-align: left; font-weight: 600; padding: .25rem .55rem",
    "th": "padding: .25rem .55rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line); "
    "position: sticky; top: 0; background: var(--soft); z-index: 1",
    "td": "padding: .25rem .55rem; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--line)",
    ".sortable th": "cursor: pointer",
    "th[aria-sort=ascending]::after": 'content: " \\2191"',
    "th[aria-sort=descending]::after": 'content: " \\2193"',
    "th.number": "text-align: right",
    "td.number": "text-align: right",
    "tbody tr:hover": "background: var(--soft)",
}
# A notebook's colours are not known here: greys that let them through. The blur keeps a fixed head legible.
_OF_PART = """
.tf-comptrain { --line: #8886; --soft: #8882 }
.tf-comptrain p { margin: .2rem 0 }
.tf-comptrain .wide { margin: .5rem 0 }
.tf-comptrain th { backdrop-filter: blur(8px) }
"""


def _tables(inside: str = "") -> str:
    """Rules of tables, inside of an element where one is named."""
    return "\n".join(f"{inside}{selector} {{ {rules} }}" for selector, rules in _TABLES.items())


_BEFORE_TABLES = """
:root { color-scheme: light dark; --line: #d9dce1; --soft: #f4f5f7; --text: #1c1f24; --muted: #5c6470; --page: #fff }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a3f47; --soft: #22262c; --text: #e6e8eb; --muted: #9aa3ae; --page: #16191d } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 0 auto;
  max-width: 1180px; padding: 1rem }
h1 { font-size: 1.5rem; margin: .3rem 0 } h2 { font-size: 1.2rem; margin: 2rem 0 .4rem }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem } p { margin: .3rem 0 .7rem; max-width: 75ch }
.wide { margin: .5rem 0 .8rem } .muted { color: var(--muted) }
code { background: var(--soft); padding: .1rem .3rem }
"""
_AFTER_TABLES = """
.heat td { padding: .2rem .4rem; text-align: center } .heat th { font-weight: 500 }
.pictures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 430px), 1fr)) }
svg { width: 100%; height: auto } .plot text { font-size: 12px; fill: var(--muted) }
.plot .axis { fill: var(--text); font-size: 13px } .plot .grid { stroke: var(--line) }
.legend span { margin-right: 1rem; white-space: nowrap } .legend i { display: inline-block; width: .7rem;
  height: .7rem; border-radius: 50%; margin-right: .35rem }
pre { background: var(--soft); padding: .7rem; border-radius: 6px; white-space: pre-wrap }
@media (max-width: 500px) { .plot text, .plot .axis { font-size: 18px } }
"""
# Sorts a table by the column whose head is clicked: numbers by their value, in data-value, other cells by their text.
_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  if (table.dataset.sorts) continue;  // of a part that was shown before, with a script of its own
  table.dataset.sorts = "true";
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => { const cell = row.cells[column];
        return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value); };
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => { const [x, y] = [key(a), key(b)];
        const empty = (x === "") - (y === "");
        if (empty) return empty;
        const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
        return down ? -order : order; });
      table.tBodies[0].append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
}
"""


def page(title: str, body: str) -> str:
    """A page: its title as text, its body as HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_BEFORE_TABLES}{_tables()}{_AFTER_TABLES}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}\n<script>{_SCRIPT}</script></body></html>\n"
    )


def fragment(body: str) -> str:
    """A part of a page that is not ours, such as a notebook: with a style of its own, and tables that sort."""
    style = f"{_OF_PART}{_tables('.tf-comptrain ')}"
    return f'<div class="tf-comptrain"><style>{style}</style>\n{body}\n<script>{_SCRIPT}</script></div>\n'


def table(
    headings: Iterable[str],
    rows: Iterable[Iterable[Cell]],
    numbers: Collection[str] = (),
    caption: str = "",
) -> str:
    """A table that sorts by a click in a `page` or `fragment`.

    Args:
      headings: Of its columns.
      rows: Their cells.
      numbers: Those of columns that are set to the right.
      caption: Above it.
    """
    heads = [(heading, ' class="number"' if heading in numbers else "") for heading in headings]
    head = "".join(f"<th{style}>{escape(heading)}</th>" for heading, style in heads)
    body = "\n".join(
        f"<tr>{''.join(_cell(cell, style) for cell, (_, style) in zip(row, heads))}</tr>" for row in rows
    )
    above = f"<caption>{escape(caption)}</caption>\n" if caption else ""
    return (
        f'<div class="wide"><table class="sortable">{above}<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>\n"
    )


def _cell(cell: Cell, style: str) -> str:
    if isinstance(cell, tuple):
        return f'<td{style} data-value="{cell[0]!r}">{escape(cell[1])}</td>'
    return f"<td{style}>{escape(cell or '')}</td>"
