"""The report of a study: one HTML file that needs no network."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from tf_comptrain.compression.report import format_bytes
from tf_comptrain.study import plots
from tf_comptrain.study.fitting import BestFit, best_fit
from tf_comptrain.study.grid import Candidate
from tf_comptrain.study.results import Row, Study
from tf_comptrain.study.tensors import ALL
from tf_comptrain.version import __version__

_STYLE = """
:root { color-scheme: light dark; --line: #d9dce1; --soft: #f4f5f7; --text: #1c1f24; --muted: #5c6470; --page: #fff }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a3f47; --soft: #22262c; --text: #e6e8eb; --muted: #9aa3ae; --page: #16191d } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); margin: 0 auto;
  max-width: 1180px; padding: 1rem }
h1 { font-size: 1.5rem; margin: .3rem 0 } h2 { font-size: 1.2rem; margin: 2rem 0 .4rem }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem } p { margin: .3rem 0 .7rem; max-width: 75ch }
.muted { color: var(--muted) }
.wide { overflow-x: auto; max-height: 32rem; overflow-y: auto; border: 1px solid var(--line); border-radius: 6px }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; min-width: 100% }
th, td { padding: .25rem .55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line) }
th { position: sticky; top: 0; background: var(--soft); z-index: 1 }
.sortable th { cursor: pointer } th[aria-sort=ascending]::after { content: " \\2191" }
th[aria-sort=descending]::after { content: " \\2193" }
th.text, td.text { text-align: left } tbody tr:hover { background: var(--soft) }
.heat td { padding: .2rem .4rem; text-align: center } .heat th { font-weight: 500 }
.pictures { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 430px), 1fr)) }
svg.plot { width: 100%; height: auto } svg text { font-size: 12px; fill: var(--muted) }
svg .axis { fill: var(--text); font-size: 13px } svg .grid { stroke: var(--line) }
.legend span { margin-right: 1rem; white-space: nowrap } .legend i { display: inline-block; width: .7rem;
  height: .7rem; border-radius: 50%; margin-right: .35rem }
pre { background: var(--soft); padding: .7rem; border-radius: 6px; white-space: pre-wrap }
@media (max-width: 500px) { svg text, svg .axis { font-size: 18px } }
"""
# Sorts a table by the column whose head is clicked: numbers by their value, in data-value, other cells by their text.
_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
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


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      heading: Its head.
      name: Of the value in a row.
      show: The value as text; None: it is text.
    """

    heading: str
    name: str
    show: Callable[[Any], str] | None = None


def _number(value: float) -> str:
    return f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def _change(value: float) -> str:
    return f"{value:+.4f}"


_SUMMARY = (
    Column("codec", "codec"),
    Column("mode", "mode"),
    Column("bound", "bound", _number),
    Column("ratio", "ratio", _number),
    Column("gradient error", "gradient_error", _percent),
    Column("cosine", "gradient_cosine", lambda value: f"{value:.5f}"),
    Column("violations", "violations", str),
    Column("encode GB/s", "encode_gb_s", _number),
    Column("decode GB/s", "decode_gb_s", _number),
    Column("metric", "metric", lambda value: f"{value:.4f}"),
    Column("change", "metric_change", _change),
    Column("from", "low", _change),
    Column("to", "high", _change),
    Column("seeds", "seeds", str),
    Column("epochs to target", "epochs_to_target", _number),
    Column("saved, plain / this", "saved_ratio", _number),
    Column("peak, plain / this", "peak_ratio", _number),
    Column("step, this / plain", "step_ratio", _number),
    Column("batch in plain's memory", "largest_batch", str),
    Column("problem", "problem"),
)
_TENSORS = (
    Column("tensor", "tensor"),
    Column("class", "tensor_class"),
    Column("shape", "shape"),
    Column("stage", "stage"),
    Column("codec", "codec"),
    Column("mode", "mode"),
    Column("bound", "bound", _number),
    Column("values", "value_bytes", format_bytes),
    Column("held", "held_bytes", format_bytes),
    Column("ratio", "ratio", _number),
    Column("largest error", "max_error", _number),
    Column("bias", "bias", _number),
    Column("autocorrelation", "autocorrelation", _number),
    Column("zeros kept", "zeros_kept", _percent),
    Column("sigma, law", "predicted_sigma", _percent),
    Column("sigma, measured", "measured_sigma", _percent),
    Column("gradient error", "gradient_error", _percent),
)


def write_page(study: Study, file: str | os.PathLike, tolerance: float) -> Path:
    """Writes the report; its path.

    Args:
      study: Of what.
      file: Where to.
      tolerance: Of the gradients, for the best fit; see `best_fit`.
    """
    networks = "\n".join(_network(study, name, tolerance) for name in study.networks)
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>What compression does: {escape(', '.join(study.networks))}</title><style>{_STYLE}</style></head>\n"
        "<body><h1>What compression does</h1>"
        f'<p class="muted">tf_comptrain {escape(__version__)}. Columns are explained in docs/study.md; a click on a '
        f"heading sorts.</p>\n{networks}\n<script>{_SCRIPT}</script></body></html>\n"
    )
    return path


def _network(study: Study, network: str, tolerance: float) -> str:
    rows = [row for row in study.summary() if row["network"] == network]
    parts = [f"<h2>{escape(network)}</h2>", f"<p>{_head(study, network)}</p>"]
    colour_of = plots.colours(list(dict.fromkeys(row["codec"] for row in rows)))
    if any("gradient_error" in row for row in rows):
        parts += [_fit(study, network, tolerance), plots.legend(colour_of), _pictures(rows, colour_of)]
    parts += _timelines(study, network, rows, colour_of)
    parts += ["<h3>Settings</h3>", table(_SUMMARY, rows)]
    stages = _of_last_stage(study, network)
    if stages:
        parts += ["<h3>Gradient error of each tensor by itself</h3>", _heat_map(stages)]
        of_network = [row for row in study.table() if row["network"] == network and row["row"] == "tensor"]
        parts += ["<h3>Tensors</h3>", table(_TENSORS, [row for row in of_network if row["tensor"] != ALL])]
    return "\n".join(parts)


def _head(study: Study, network: str) -> str:
    plain = [row for row in study.table() if (row["network"], row["codec"]) == (network, "plain")]
    epochs, batch = study.how()
    metrics = ", ".join(f"{row['metric']:.4f}" for row in plain if row["metric"] is not None)
    return escape(
        f"{study.metric(network)} of plain training, by seed: {metrics or 'not measured yet'}. "
        f"{epochs} epochs, {batch} samples a step."
    )


def _fit(study: Study, network: str, tolerance: float) -> str:
    try:
        found: BestFit | str = best_fit(study, tolerance, network=network)
    except ValueError as error:
        found = f"none: {error}"
    return f"<h3>Best fit, gradients within {tolerance:.0%}</h3><pre>{escape(str(found))}</pre>"


def _pictures(rows: Sequence[Row], colour_of: dict[str, str]) -> str:
    measured = [row for row in rows if "gradient_error" in row]
    words = {id(row): _words(row) for row in measured}
    by_error = [
        plots.Point(100 * row["gradient_error"], row["ratio"], row["codec"], words[id(row)])
        for row in measured
    ]
    by_speed = [
        plots.Point(row["ratio"], row["encode_gb_s"], row["codec"], words[id(row)]) for row in measured
    ]
    return (
        '<div class="pictures">'
        + plots.scatter(by_error, "gradient error, %", "plain bytes / held bytes", colour_of)
        + plots.scatter(by_speed, "plain bytes / held bytes", "encoding, GB/s", colour_of)
        + "</div>"
    )


def _timelines(study: Study, network: str, rows: Sequence[Row], colour_of: dict[str, str]) -> list[str]:
    """Memory over a step: of plain training, and of each codec's setting with the smallest peak."""
    plain = study.plain_timeline(network)
    if plain is None:
        return []
    smallest: dict[str, Row] = {}
    for row in sorted((row for row in rows if row.get("timeline")), key=lambda row: max(row["timeline"])):
        smallest.setdefault(row["codec"], row)
    lines = [plots.Line([level / 1e6 for level in plain], "currentColor", "plain")]
    for codec, row in smallest.items():
        words = str(Candidate(row["codec"], row["mode"], row["bound"]))
        lines.append(plots.Line([level / 1e6 for level in row["timeline"]], colour_of[codec], words))
    picture = plots.lines(lines, "of the step, %", "memory over the resting level, MB")
    return [
        "<h3>Memory over a step</h3>",
        '<p class="muted">Of plain training, and of each codec with the setting that has the smallest peak.</p>',
        plots.legend({line.words: line.colour for line in lines}),
        f'<div class="pictures">{picture}</div>',
    ]


def _words(row: Row) -> str:
    setting = Candidate(row["codec"], row["mode"], row["bound"])
    return f"{setting}: ratio {row['ratio']:.3g}, gradients {100 * row['gradient_error']:.3g}% off"


def _of_last_stage(study: Study, network: str) -> dict[Candidate, list[Row]]:
    """Rows of tensors by setting, of the stage that was measured last in a training."""
    found = {}
    for setting in study.settings(network):
        rows = study.tensors(network, setting)
        if rows:
            found[setting] = [row for row in rows if row["stage"] == rows[-1]["stage"]]
    return found


def _heat_map(by_setting: dict[Candidate, list[Row]]) -> str:
    """Tensors in rows, settings in columns."""
    errors = {s: {row["tensor"]: row["gradient_error"] for row in rows} for s, rows in by_setting.items()}
    names = list(dict.fromkeys(name for of_setting in errors.values() for name in of_setting))
    known = sorted(error for of_setting in errors.values() for error in of_setting.values())
    largest = known[int(0.95 * (len(known) - 1))]
    heads = "".join(f"<th>{escape(str(setting))}</th>" for setting in errors)
    body = []
    for name in names:
        cells = []
        for setting, of_setting in errors.items():
            error = of_setting.get(name)
            text = "" if error is None else _percent(error)
            style = "" if error is None else f' style="{plots.heat(error, largest)}"'
            cells.append(f'<td{style} title="{escape(f"{name}, {setting}")}">{text}</td>')
        body.append(f'<tr><th class="text">{escape(name)}</th>{"".join(cells)}</tr>')
    return (
        f'<div class="wide"><table class="heat"><thead><tr><th class="text">tensor</th>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """A table that sorts by a click; columns in which no row has a value are left out."""
    shown = [column for column in columns if any(row.get(column.name) is not None for row in rows)]
    heads = "".join(f"<th{_class(column)}>{escape(column.heading)}</th>" for column in shown)
    body = "\n".join(
        f"<tr>{''.join(_cell(column, row.get(column.name)) for column in shown)}</tr>" for row in rows
    )
    made = f'<table class="sortable"><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table>'
    return f'<div class="wide">{made}</div>'


def _class(column: Column) -> str:
    return ' class="text"' if column.show is None else ""


def _cell(column: Column, value: Any) -> str:
    if value is None:
        return f"<td{_class(column)}></td>"
    if column.show is None:
        return f'<td class="text">{escape(str(value))}</td>'
    return f'<td data-value="{float(value)!r}">{escape(column.show(value))}</td>'
