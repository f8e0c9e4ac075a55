"""`tf-comptrain study FILE.py`: what compression does to the network of a file, and the policy that fits it best."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tf_comptrain.cli.options import positive, seed
from tf_comptrain.render import text

if TYPE_CHECKING:
    from tf_comptrain.study.results import Row, Study

_NEEDED = ("build", "data")
_HEADINGS = (
    "codec", "mode", "bound", "ratio", "gradient error", "change", "95% interval", "saved, plain / this", "step"
)  # fmt: skip
_OPTIONS = ("codecs", "modes", "bounds", "stages", "seeds", "epochs", "batch_size", "metric", "trainings")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `main`."""
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE.py",
        help="defines build(), data() and, if it wants, STUDY: arguments of tf_comptrain.impact_study",
    )
    parser.add_argument("--folder", type=Path, help="for cells, table, report and policy (FILE-study)")
    parser.add_argument("--codecs", nargs="+", help="such as plane rans zfp (all that are installed)")
    parser.add_argument("--modes", nargs="+", help="of abs sigma range fixed_rate (sigma)")
    parser.add_argument("--bounds", nargs="+", type=float, help="of each mode but fixed_rate")
    parser.add_argument("--stages", nargs="*", help="of start early mid late (early mid late)")
    parser.add_argument("--seeds", nargs="+", type=seed, help="(0)")
    parser.add_argument("--epochs", type=positive, help="of each training (3)")
    parser.add_argument("--batch", type=positive, dest="batch_size", help="samples a step (32)")
    parser.add_argument("--metric", help="a key of the logs of fit (the first one on the validation data)")
    parser.add_argument(
        "--no-trainings",
        action="store_false",
        dest="trainings",
        default=None,
        help="look at tensors alone, at the stages of one plain training: minutes, and enough for a policy",
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.1, help="error / gradient, of the policy (%(default)s)"
    )
    parser.set_defaults(function=main)


def main(args: argparse.Namespace) -> int:
    """Measures what is missing, prints a summary, writes the files.

    Returns:
      0; 1 where a cell could not be measured or no policy fits a network; 2 for a file or arguments that do not do,
      and where plain training diverges.
    """
    from tf_comptrain.study.running import impact_study  # imports TensorFlow

    if not args.tolerance > 0:
        text.complain(f"--tolerance must be above 0. Received: {args.tolerance:g}.")
        return 2
    folder = args.folder or args.file.with_name(f"{args.file.stem}-study")
    try:
        build, data, how = _defined_in(args.file)
        how |= {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
        study = impact_study(build, data, folder=folder, **how)
    except (OSError, TypeError, ValueError) as error:
        text.complain(error)
        return 2
    except KeyboardInterrupt:
        text.complain("Stopped. What is finished is in the folder: the same command goes on.")
        return 130
    for network in study.networks:
        _show(study, network, args.tolerance)
    paths, unfit = _written(study, args.tolerance)
    for path in paths:
        print(path)
    problems = [row["problem"] for row in study.table() if row["problem"]]
    if problems:
        text.complain(f"{len(problems)} cells could not be measured: {problems[0]}")
    return 1 if problems or unfit else 0


def _defined_in(file: Path) -> tuple[Any, Any, dict[str, Any]]:
    """(build, data, arguments) of a file.

    Raises:
      OSError: It cannot be read.
      ValueError: It lacks one of them, or has arguments that `impact_study` does not take from a file.
    """
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {str(file)!r}.")
    sys.path.insert(
        0, str(file.resolve().parent)
    )  # as Python does for a script: it may import what lies beside it
    found = runpy.run_path(str(file), run_name="study")
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise ValueError(
            f"{file} must define build(), which returns a compiled model, and data(), which returns "
            f"((x, y), (x_validation, y_validation)). It lacks {missing[0]!r}."
        )
    how = dict(found.get("STUDY", {}))
    unknown = sorted(set(how) - set(_OPTIONS))
    if unknown:
        raise ValueError(
            f"STUDY of {file} must have keys among {', '.join(_OPTIONS)}. It has {unknown[0]!r}."
        )
    return found["build"], found["data"], how


def _show(study: Study, network: str, tolerance: float) -> None:
    """Prints a line for each setting, and the policy."""
    from tf_comptrain.study.best_fit import best_fit

    numbers = _HEADINGS[2:]
    shown = text.table_of(f"{network}, {study.metric(network)}", _HEADINGS, numbers)
    for row in study.summary():
        if row["network"] == network:
            shown.add_row(*_cells(row))
    text.show(shown)
    try:
        print(best_fit(study, tolerance, network=network))
    except ValueError as error:
        print(f"No policy: {error}")


def _cells(row: Row) -> tuple[str, ...]:
    def number(name: str, words: str) -> str:
        return "" if row.get(name) is None else format(row[name], words)

    return (
        row["codec"],
        row["mode"],
        f"{row['bound']:g}",
        number("ratio", ".2f"),
        number("gradient_error", ".2%"),
        number("metric_change", "+.4f") or row.get("problem", "")[:40],
        "" if row.get("low") is None else f"{row['low']:+.4f} to {row['high']:+.4f}",
        number("saved_ratio", ".2f"),
        number("step_ratio", ".2f"),
    )


def _written(study: Study, tolerance: float) -> tuple[list[Path], list[str]]:
    """The files, and the networks without a policy, of which none is left of a call before."""
    from tf_comptrain.study.best_fit import best_fit

    paths = [study.to_html(tolerance=tolerance)]
    try:
        paths += study.write()
    except ImportError as error:
        text.complain(error)
    unfit = []
    for network in study.networks:
        path = study.folder / ("policy.json" if len(study.networks) == 1 else f"policy-{network}.json")
        try:
            fit = best_fit(study, tolerance, network=network)
        except ValueError:
            path.unlink(missing_ok=True)
            unfit.append(network)
            continue
        fit.write(path)
        paths.append(path)
    return paths, unfit
