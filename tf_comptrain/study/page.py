"""The report of a study: one HTML file that needs no network."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tf_comptrain.render import html, svg
from tf_comptrain.render.units import format_bytes
from tf_comptrain.study.grid import Candidate
from tf_comptrain.study.policy_fit import BestFit, fit_policy
from tf_comptrain.study.tensor_cells import ALL
from tf_comptrain.version import __version__

if TYPE_CHECKING:
    from tf_comptrain.study.results import Row, Study


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
    below = (
        f'<p class="muted">tf_comptrain {escape(__version__)}. Columns are explained in docs/study.md; a click on a '
        f"heading sorts.</p>\n{networks}"
    )
    path.write_text(html.page(f"What compression does: {', '.join(study.networks)}", below))
    return path


def _network(study: Study, network: str, tolerance: float) -> str:
    rows = [row for row in study.summary() if row["network"] == network]
    parts = [f"<h2>{escape(network)}</h2>", f"<p>{_head(study, network)}</p>"]
    colour_of = svg.colours(list(dict.fromkeys(row["codec"] for row in rows)))
    if any("gradient_error" in row for row in rows):
        parts += [_fit(study, network, tolerance), svg.legend(colour_of), _pictures(rows, colour_of)]
    parts += _timelines(study, network, rows, colour_of)
    parts += ["<h3>Settings</h3>", _table(_SUMMARY, rows)]
    stages = _of_last_stage(study, network)
    if stages:
        parts += ["<h3>Gradient error of each tensor by itself</h3>", _heat_map(stages)]
        of_network = [row for row in study.table() if row["network"] == network and row["row"] == "tensor"]
        parts += ["<h3>Tensors</h3>", _table(_TENSORS, [row for row in of_network if row["tensor"] != ALL])]
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
        found: BestFit | str = fit_policy(study, tolerance, network)
    except ValueError as error:
        found = f"none: {error}"
    return f"<h3>Best fit, gradients within {tolerance:.0%}</h3><pre>{escape(str(found))}</pre>"


def _pictures(rows: Sequence[Row], colour_of: dict[str, str]) -> str:
    measured = [row for row in rows if "gradient_error" in row]
    words = {id(row): _words(row) for row in measured}
    by_error = [
        svg.Point(100 * row["gradient_error"], row["ratio"], row["codec"], words[id(row)]) for row in measured
    ]
    by_speed = [svg.Point(row["ratio"], row["encode_gb_s"], row["codec"], words[id(row)]) for row in measured]
    return (
        '<div class="pictures">'
        + svg.scatter(by_error, "gradient error, %", "plain bytes / held bytes", colour_of)
        + svg.scatter(by_speed, "plain bytes / held bytes", "encoding, GB/s", colour_of)
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
    lines = [svg.Line([level / 1e6 for level in plain], "currentColor", "plain")]
    for codec, row in smallest.items():
        words = str(Candidate(row["codec"], row["mode"], row["bound"]))
        lines.append(svg.Line([level / 1e6 for level in row["timeline"]], colour_of[codec], words))
    picture = svg.lines(lines, "of the step, %", "memory over the resting level, MB")
    return [
        "<h3>Memory over a step</h3>",
        '<p class="muted">Of plain training, and of each codec with the setting that has the smallest peak.</p>',
        svg.legend({line.words: line.colour for line in lines}),
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
            style = "" if error is None else f' style="{svg.heat(error, largest)}"'
            cells.append(f'<td{style} title="{escape(f"{name}, {setting}")}">{text}</td>')
        body.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    return (
        f'<div class="wide"><table class="heat"><thead><tr><th>tensor</th>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """A table; columns in which no row has a value are left out."""
    shown = [column for column in columns if any(row.get(column.name) is not None for row in rows)]
    numbers = [column.heading for column in shown if column.show is not None]
    cells = ([_cell(column, row.get(column.name)) for column in shown] for row in rows)
    return html.table([column.heading for column in shown], cells, numbers)


def _cell(column: Column, value: Any) -> html.Cell:
    if value is None or column.show is None:
        return None if value is None else str(value)
    return float(value), column.show(value)
