"""What a study has found: its table, and a line for each setting."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_comptrain.memory.max_batch import PeakLine
from tf_comptrain.study.folder import Folder
from tf_comptrain.study.grid import PLAIN_TRAINING, STAGES, TENSORS, TRAINING, Candidate, Cell
from tf_comptrain.study.page import write_page
from tf_comptrain.study.tensor_cells import ALL
from tf_comptrain.study.trainings import epochs_to, is_higher_better

if TYPE_CHECKING:
    import pyarrow

# Columns in their order; rows have those of their kind.
_COLUMNS = (
    "row", "network", "codec", "mode", "bound", "stage", "seed", "tensor", "tensor_class", "shape", "bound_used",
    "value_bytes", "held_bytes", "ratio", "max_error", "rms_error", "violations", "bias", "autocorrelation",
    "zeros_kept", "encode_gb_s", "decode_gb_s", "predicted_sigma", "measured_sigma", "law_cosine", "gradient_error",
    "gradient_cosine", "metric", "metric_change", "loss", "history", "epochs_to_target", "saved_bytes",
    "saved_plain_bytes", "samples", "peak_bytes", "half_batch_peak_bytes", "largest_batch", "timeline", "step_s",
    "train_s", "problem",
)  # fmt: skip
_WHOLE = (
    "seed", "value_bytes", "held_bytes", "violations", "epochs_to_target", "saved_bytes", "saved_plain_bytes",
    "samples", "peak_bytes", "half_batch_peak_bytes", "largest_batch",
)  # fmt: skip
_TEXT = (
    "row", "network", "codec", "mode", "stage", "tensor", "tensor_class", "shape", "history", "timeline", "problem"
)  # fmt: skip
_CONFIDENCE = 0.95

Row = dict[str, Any]


class Study:
    """What a folder of `impact_study` has so far.

    Args:
      folder: Its path.

    Attributes:
      folder: As a Path.

    Raises:
      ValueError: There is no study in the folder.

    Examples:
      >>> study = ct.Study("study")
      >>> for row in study.summary():
      ...     print(row["codec"], row["bound"], row["ratio"], row["metric_change"])
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        self._folder = Folder(folder)
        self._identity = self._folder.arguments()["identity"]
        self._cells = dict(sorted(self._folder.cells().items(), key=lambda item: _place(item[0])))

    @property
    def networks(self) -> list[str]:
        """Their names."""
        return list(self._identity["networks"])

    def metric(self, network: str) -> str:
        """What a network is measured by."""
        return self._identity["metric"][network]

    def how(self) -> tuple[int, int]:
        """(epochs, batch size) of the trainings."""
        return self._identity["epochs"], self._identity["batch_size"]

    def is_higher_better(self, network: str) -> bool:
        """Whether more of the metric is better."""
        return is_higher_better(self.metric(network))

    def table(self) -> list[Row]:
        """A row for each tensor and each training, with all columns; None where a column does not apply.

        The columns are those of docs/study.md. Rows are in the order of networks, kinds, stages, settings and seeds, so
        that it does not matter in which order they were measured.
        """
        rows = []
        for cell, record in self._cells.items():
            for found in record["rows"]:
                row = dict.fromkeys(_COLUMNS)
                row |= {"row": cell.kind, "network": cell.network, **cell.setting._asdict()}
                row |= {"stage": cell.stage or None, "seed": cell.seed, **found}
                if cell.kind == TRAINING and "metric" in found:
                    row |= self._compared(cell, found)
                rows.append(row)
        return rows

    def to_arrow(self) -> pyarrow.Table:
        """The table as a pyarrow.Table.

        Raises:
          ImportError: pyarrow is missing: pip install "tf_comptrain[study]".
        """
        arrow = _pyarrow()
        types = {name: arrow.string() for name in _TEXT} | {name: arrow.int64() for name in _WHOLE}
        schema = arrow.schema([(name, types.get(name, arrow.float64())) for name in _COLUMNS])
        return arrow.Table.from_pylist(self.table(), schema=schema)

    def write(self, folder: str | os.PathLike | None = None) -> tuple[Path, Path]:
        """Writes table.parquet and table.csv, into the study's folder by default; their paths.

        Raises:
          ImportError: pyarrow is missing: pip install "tf_comptrain[study]".
        """
        table = self.to_arrow()
        import pyarrow
        from pyarrow import csv, parquet

        to = self.folder if folder is None else Path(folder)
        to.mkdir(parents=True, exist_ok=True)
        paths = to / "table.parquet", to / "table.csv"
        parquet.write_table(table, paths[0])
        rows = [{name: _no_formula(value) for name, value in row.items()} for row in table.to_pylist()]
        csv.write_csv(pyarrow.Table.from_pylist(rows, table.schema), paths[1])
        return paths

    def to_html(self, file: str | os.PathLike | None = None, tolerance: float = 0.1) -> Path:
        """Writes the report, one file that needs no network, report.html in the study's folder by default; its path.

        Args:
          file: Where to.
          tolerance: Of the gradients, for the policy that fits best; see `best_fit`.
        """
        return write_page(self, self.folder / "report.html" if file is None else file, tolerance)

    def settings(self, network: str) -> list[Candidate]:
        """Those that were measured of a network, without plain Keras."""
        found = {cell.setting for cell in self._cells if cell.network == network}
        return sorted(found - {PLAIN_TRAINING})

    def summary(self) -> list[Row]:
        """A row for each network and setting: over stages and seeds.

        Columns: network, codec, mode, bound; of the tensors ratio, violations, gradient_error (root mean square over
        the stages), gradient_cosine (the smallest), encode_gb_s, decode_gb_s; of the trainings seeds, metric,
        metric_change with its 95% interval (low, high; of two seeds and more, by Student's t), saved_ratio and
        peak_ratio (plain over compressed), step_ratio (compressed over plain), largest_batch (in the memory that plain
        training takes), timeline, epochs_to_target; problem.
        """
        return [
            self._summed(network, setting) for network in self.networks for setting in self.settings(network)
        ]

    def tensors(self, network: str, setting: Candidate, tensor: str | None = None) -> list[Row]:
        """Tensor rows of a setting, of all stages: those of one name, or all but the sums over a step."""
        return [
            {"stage": cell.stage, "seed": cell.seed, **row}
            for cell, record in self._cells.items()
            if (cell.kind, cell.network, cell.setting) == (TENSORS, network, setting)
            for row in record["rows"]
            if "problem" not in row and (row["tensor"] == tensor if tensor else row["tensor"] != ALL)
        ]

    def plain_timeline(self, network: str) -> list[int] | None:
        """Bytes over the resting level in each hundredth of a step of plain training; None where none was measured."""
        seeds = [cell.seed for cell in self._cells if cell.kind == TRAINING]
        rows = (self._training(network, PLAIN_TRAINING, seed) for seed in seeds)
        return next((row["timeline"] for row in rows if row and row.get("timeline")), None)

    def _training(self, network: str, setting: Candidate, seed: int) -> Row | None:
        record = self._cells.get(Cell(TRAINING, network, setting, "", seed))
        return record["rows"][0] if record and "metric" in record["rows"][0] else None

    def _compared(self, cell: Cell, found: Row) -> Row:
        """A training beside plain training of the same seed; its target is where that one ended."""
        plain = self._training(cell.network, PLAIN_TRAINING, cell.seed)
        row: Row = {"history": " ".join(f"{value:.6g}" for value in found["history"])}
        if plain is not None:
            higher = self.is_higher_better(cell.network)
            row["metric_change"] = found["metric"] - plain["metric"]
            row["epochs_to_target"] = epochs_to(found["history"], plain["metric"], higher)
            row["largest_batch"] = self._largest_batch(found, plain)
        if "saved_bytes" in found:
            row["ratio"] = found["saved_plain_bytes"] / max(found["saved_bytes"], 1)
        if found.get("timeline"):
            row["timeline"] = " ".join(map(str, found["timeline"]))
        return row

    def _largest_batch(self, found: Row, plain: Row) -> int | None:
        """The batch whose step peaks where plain training's does at the study's; None where steps were not measured."""
        if not ("half_batch_peak_bytes" in found and "peak_bytes" in plain):
            return None
        batch = found.get("samples", self._identity["batch_size"])
        sample_bytes = (found["peak_bytes"] - found["half_batch_peak_bytes"]) / (
            batch - max(batch // 2, 1) or 1
        )
        line = PeakLine(found["peak_bytes"] - batch * sample_bytes, sample_bytes)
        return line.largest_batch(plain["peak_bytes"])

    def _summed(self, network: str, setting: Candidate) -> Row:
        row: Row = {"network": network, **setting._asdict()}
        steps = self.tensors(network, setting, ALL)
        if steps:
            violations = [step["violations"] for step in steps if step["violations"] is not None]
            row |= {
                "ratio": statistics.fmean(step["ratio"] for step in steps),
                "violations": sum(violations) if violations else None,
                "gradient_error": _rms([step["gradient_error"] for step in steps]),
                "gradient_cosine": min(step["gradient_cosine"] for step in steps),
                "encode_gb_s": statistics.fmean(step["encode_gb_s"] for step in steps),
                "decode_gb_s": statistics.fmean(step["decode_gb_s"] for step in steps),
            }
        row |= self._trained(network, setting)
        problems = [
            found["problem"]
            for cell, record in self._cells.items()
            if (cell.network, cell.setting) == (network, setting)
            for found in record["rows"]
            if "problem" in found
        ]
        return row | ({"problem": problems[0]} if problems else {})

    def _trained(self, network: str, setting: Candidate) -> Row:
        pairs = [
            (ours, plain, cell)
            for cell in self._cells
            if (cell.kind, cell.network, cell.setting) == (TRAINING, network, setting)
            if (ours := self._training(network, setting, cell.seed)) is not None
            if (plain := self._training(network, PLAIN_TRAINING, cell.seed)) is not None
        ]
        if not pairs:
            return {}
        changes = [ours["metric"] - plain["metric"] for ours, plain, _ in pairs]
        low, high = interval(changes)
        epochs = [self._compared(cell, ours)["epochs_to_target"] for ours, _, cell in pairs]
        row: Row = {
            "seeds": len(pairs),
            "metric": statistics.fmean(ours["metric"] for ours, _, _ in pairs),
            "metric_change": statistics.fmean(changes),
            "low": low,
            "high": high,
            "epochs_to_target": None if None in epochs else statistics.fmean(epochs),
        }
        measured = next(((o, p) for o, p, _ in pairs if "step_s" in o and "step_s" in p), None)
        if measured is not None:
            ours, plain = measured
            row |= {
                "saved_ratio": plain["saved_bytes"] / max(ours["saved_bytes"], 1),
                "peak_ratio": plain["peak_bytes"] / ours["peak_bytes"] if ours["peak_bytes"] else None,
                "step_ratio": ours["step_s"] / plain["step_s"],
                "largest_batch": self._largest_batch(ours, plain),
                "timeline": ours.get("timeline"),
            }
        return row


def _place(cell: Cell) -> tuple:
    """In the order of networks, kinds, stages, settings and seeds."""
    stage = list(STAGES).index(cell.stage) if cell.stage else -1
    return cell.network, cell.kind, stage, cell.setting, cell.seed


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """95% interval of a mean by Student's t; None of fewer than two values."""
    if len(values) < 2:
        return None, None
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    from scipy import special  # which takes a while to import

    half = float(special.stdtrit(len(values) - 1, (1 + _CONFIDENCE) / 2)) * error
    return mean - half, mean + half


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(statistics.fmean(value * value for value in values))


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ImportError(
            'The table as Parquet and CSV needs pyarrow: pip install "tf_comptrain[study]". study.table() does without.'
        ) from None
    return pyarrow


def _no_formula(value: Any) -> Any:
    """Text that a spreadsheet would compute, behind a quote, so that it shows it: names of layers are the user's."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
