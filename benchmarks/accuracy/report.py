"""Table and plot of equivalence.py beside docs/accuracy.md, from its results alone."""

from __future__ import annotations

import csv
import math
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pairs
import sequential
from sequential import Verdict
from tasks import ARM_NAMES, PLAIN, TASKS, Task

BEGIN, END = "<!-- equivalence: begin (written by --report) -->", "<!-- equivalence: end -->"
COLUMNS = 100  # of prose in docs
IMAGE, TABLE = "accuracy_equivalence.png", "equivalence.csv"
HEADINGS = ("task", "arm", "seeds", "change", "95% interval", "verdict", "accuracy, % (decoder: loss, nats)")
HEADINGS += ("scatter", "conv inputs", "all saved", "CPU time/step")


def write(runs: Sequence[pairs.Run], docs: Path) -> None:
    """Writes the part of docs/accuracy.md between the marks, the table and the plot.

    Args:
      runs: Of the results file.
      docs: The folder with accuracy.md, images/ and tables/.
    """
    lines, rows = [BEGIN, ""], []
    for name, task in TASKS.items():
        if of_task := published(pairs.of_task(runs, name, task)):
            rows += table(name, task, of_task)
            lines += [] if task.jit_compile else [f"- {_wrapped(said(name, task), 2)}"]
    if not rows:
        lines += [
            f"No arm has two seeds yet, so there is no interval to show; {len(runs)} runs are finished.",
            "",
        ]
    else:
        plot(runs, docs / "images" / IMAGE)
        path = docs / "tables" / TABLE
        path.parent.mkdir(exist_ok=True)
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([HEADINGS, *rows])
        lines += ["- `-xla`: the same, compiled by XLA.", "", f"[Changes from plain](tables/{TABLE})", ""]
        lines += [f"![Changes and their intervals](images/{IMAGE})", "", origin(runs), ""]
    page = docs / "accuracy.md"
    text = page.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(before + "\n".join([*lines, END]) + after)


def published(runs: Sequence[pairs.Run]) -> list[pairs.Run]:
    """A task's runs of arms with two seeds or more: there is no figure without an interval."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run["arm"], set()).add(run["seed"])
    arms = {arm for arm, found in seeds.items() if len(found) > 1}
    return [run for run in runs if run["arm"] in arms] if arms - {PLAIN} else []


def said(name: str, task: Task) -> str:
    """What a task is, in words."""
    sizes = (
        f"{task.epochs * task.steps:,} steps of {task.batch} passages"
        if task.is_text
        else f"{task.train:,} images, {task.epochs} epochs, batch {task.batch}"
    )
    return f"`{name}`: {task.words}; {sizes}."


def table(name: str, task: Task, runs: Sequence[pairs.Run]) -> list[list[str]]:
    """A task's arms, a row each; plain's own values in the first."""
    rows = []
    for arm in ARM_NAMES:
        if of_arm := [run for run in runs if run["arm"] == arm]:
            rows.append([name, arm, *_change(task, runs, arm), *_figures(task, runs, of_arm)])
    return rows


def _change(task: Task, runs: Sequence[pairs.Run], arm: str) -> list[str]:
    """Seeds, change, interval and verdict; of plain its seeds."""
    if arm == PLAIN:
        return [str(len({run["seed"] for run in runs if run["arm"] == PLAIN})), "", "", ""]
    verdict = sequential.verdict(pairs.in_order(pairs.differences(runs, task, arm)), task.rule)
    if not verdict.seeds:
        return ["0", "", "", sequential.UNDECIDED]
    unit = "%" if task.is_text else ""
    ends = f"[{_signed(verdict.low, task)}, {_signed(verdict.high, task)}]" if verdict.seeds > 1 else ""
    return [str(verdict.seeds), _signed(verdict.mean, task) + unit, ends, verdict.word]


def interval_words(verdict: Verdict, task: Task) -> str:
    """The mean and the interval about it."""
    ends = f" [{_signed(verdict.low, task)}, {_signed(verdict.high, task)}]" if verdict.seeds > 1 else ""
    return f"{_signed(verdict.mean, task)}{ends} {'%' if task.is_text else 'points'}"


def _signed(value: float, task: Task) -> str:
    return f"{value:+.3f}" if task.is_text else f"{value:+.2f}"


def _figures(task: Task, runs: Sequence[pairs.Run], of_arm: Sequence[pairs.Run]) -> list[str]:
    """Mean of the metric and its 95% interval, its scatter from run to run, compression ratios, and time / plain's."""
    digits = 4 if task.is_text else 2
    metrics = [run["metric"] for run in of_arm]
    of_seeds = [statistics.fmean(run["metric"] for run in found) for found in pairs.by_seed(of_arm).values()]
    mean, half = sequential.interval(of_seeds)
    scatter = f"{statistics.stdev(metrics):.{digits}f}" if len(metrics) > 1 else ""
    plain = [run for run in runs if run["arm"] == PLAIN]
    saved = [[run["saved_bytes"] for run in part if "saved_bytes" in run] for part in (plain, of_arm)]
    saved_ratio = f"{saved[0][0] / saved[1][0]:.1f}" if all(saved) else ""
    conv = f"{statistics.fmean(run['conv_ratio'] for run in of_arm):.1f}"
    steps = [{(run["seed"], run["order"]): run["step_cpu_s"] for run in part} for part in (plain, of_arm)]
    both = steps[0].keys() & steps[1].keys()
    time = f"{statistics.median(steps[1][key] / steps[0][key] for key in both):.2f}" if both else ""
    return [f"{mean:.{digits}f} ± {half:.{digits}f}", scatter, conv, saved_ratio, time]


def origin(runs: Sequence[pairs.Run]) -> str:
    """Which machines, versions and commits made the runs, and how many there are."""
    kinds, versions, commits, tensorflows = (
        sorted({str(run["machine"][key]) for run in runs})
        for key in ("kind", "version", "commit", "tensorflow")
    )
    hours = sum(run["cpu_s"] for run in runs) / 3600
    return _wrapped(
        f"{len(runs)} runs, {hours:.1f} CPU hours; tf_comptrain {', '.join(versions)} (commits {', '.join(commits)}), "
        f"TensorFlow {', '.join(tensorflows)}; {'; '.join(kinds)}."
    )


def _wrapped(prose: str, indent: int = 0) -> str:
    indents = " " * indent
    filled = textwrap.fill(
        prose,
        COLUMNS,
        break_long_words=False,
        break_on_hyphens=False,
        initial_indent=indents,
        subsequent_indent=indents,
    )
    return filled.strip()


def plot(runs: Sequence[pairs.Run], path: Path) -> None:
    """A row for each task and arm: the mean and its interval in units of the task's margin."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [
        (f"{name}, {arm}", verdict, task.rule.margin)
        for name, task in TASKS.items()
        for arm, verdict in _verdicts(task, published(pairs.of_task(runs, name, task)))
    ]
    colors = {sequential.EQUIVALENT: "C2", sequential.DIFFERENT: "C3", sequential.UNDECIDED: "C7"}
    figure, axis = pyplot.subplots(figsize=(7, 0.32 * len(rows) + 1), layout="constrained")
    axis.axvspan(-1, 1, color="C2", alpha=0.12, lw=0)
    axis.axvline(0, color="black", lw=0.6)
    for row, (_, verdict, margin) in enumerate(rows):
        half = (verdict.high - verdict.mean) / margin
        axis.errorbar(verdict.mean / margin, row, xerr=half, fmt="o", color=colors[verdict.word], capsize=3)
    axis.set_yticks(range(len(rows)), [label for label, _, _ in rows])
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.set_xlim(-2, 2)
    axis.set_xlabel("change from plain / margin (0.3 points of accuracy, 0.1% of a text's loss)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _verdicts(task: Task, runs: Sequence[pairs.Run]) -> Iterator[tuple[str, Verdict]]:
    for arm in ARM_NAMES[1:]:
        if any(run["arm"] == arm for run in runs):
            verdict = sequential.verdict(pairs.in_order(pairs.differences(runs, task, arm)), task.rule)
            if verdict.seeds and math.isfinite(verdict.high):
                yield arm, verdict
