"""The study's tables and plots, from its results alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- study: begin (written by --report) -->", "<!-- study: end -->"
PLAIN = "plain"
# Student's t, two-sided 95%, by degrees of freedom.
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
HEADER = (
    "| method | seeds | accuracy | change, paired | conv inputs | all saved | peak, MB | plain / it | CPU time/step |",
    "|---|---|---|---|---|---|---|---|---|",
)


def write(results: Mapping[str, Sequence[dict]], docs: Path, protocols: Mapping[str, Any]) -> None:
    """Writes the study's part of docs/accuracy.md, and its plots beside the other images.

    Args:
      results: The runs of each protocol.
      docs: The folder with accuracy.md and images/.
      protocols: study.PROTOCOLS.
    """
    lines = [BEGIN, ""]
    for name, protocol in protocols.items():
        runs = results[name]
        if not runs or name == "smoke":
            continue
        lines += [f'### Protocol "{name}": {protocol.words}', ""]
        for task in protocol.tasks:
            chosen = [run for run in runs if run["network"] == task.network]
            if chosen:
                image = docs / "images" / f"accuracy_{name}_{task.network}.png"
                plot(chosen, task.methods, image)
                lines += [*table(chosen, task.methods), "", f"![{task.network}](images/{image.name})", ""]
    lines.append(END)
    page = docs / "accuracy.md"
    text = page.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    page.write_text(before + "\n".join(lines) + after)


def table(runs: Sequence[dict], methods: Sequence[str]) -> list[str]:
    """One row for each method, in Markdown."""
    task = runs[0]["task"]
    lines = [
        f"{task['network']}, {task['train']:,} images of {task['data']} ({task['test']:,} to test), "
        f"{task['epochs']} epochs, batch {task['batch']}:",
        "",
        *HEADER,
    ]
    by_method = {method: [run for run in runs if run["method"] == method] for method in methods}
    plain = {run["seed"]: run for run in by_method.get(PLAIN, ())}
    for method, found in by_method.items():
        if found:
            lines.append(f"| {method} | {len(found)} | {_mean_and_spread(found)} | {_row(found, plain)} |")
    return lines


def _mean_and_spread(runs: Sequence[dict]) -> str:
    values = [100 * run["accuracy"] for run in runs]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def _row(runs: Sequence[dict], plain: Mapping[int, dict]) -> str:
    pairs = [(run, plain[run["seed"]]) for run in runs if run["seed"] in plain]
    change = paired([100 * (run["accuracy"] - other["accuracy"]) for run, other in pairs])
    conv = statistics.fmean(run["conv_ratio"] for run in runs)
    saved = peak = times_peak = ""
    for run in (run for run in runs if run["saved_bytes"]):
        saved = f"{run['saved_plain_bytes'] / run['saved_bytes']:.1f}"
    for run, other in ((run, other) for run, other in pairs if run["peak_bytes"] and other["peak_bytes"]):
        peak = f"{run['peak_bytes'] / 1e6:.1f}"
        times_peak = f"{other['peak_bytes'] / run['peak_bytes']:.1f}"
    times = statistics.median(run["cpu_s"] / other["cpu_s"] for run, other in pairs) if pairs else 0
    is_plain = runs[0]["method"] == PLAIN
    return f"{'' if is_plain else change} | {conv:.1f} | {saved} | {peak} | {times_peak} | {times:.2f}"


def paired(differences: Sequence[float]) -> str:
    """Mean of paired differences and its 95% interval by Student's t."""
    if not differences:
        return ""
    mean = statistics.fmean(differences)
    freedom = len(differences) - 1
    if freedom not in _T:
        return f"{mean:+.2f}"
    half = _T[freedom] * statistics.stdev(differences) / len(differences) ** 0.5
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def plot(runs: Sequence[dict], methods: Sequence[str], path: Path) -> None:
    """Accuracy over epochs (mean and range over seeds), ratio over epochs, bounds over steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (accuracy, ratio, bounds) = pyplot.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for number, method in enumerate(methods):
        found = [run for run in runs if run["method"] == method]
        if not found:
            continue
        color = f"C{number}"
        curves = list(zip(*(run["val_accuracy"] for run in found)))
        epochs = range(1, len(curves) + 1)
        accuracy.plot(epochs, [100 * statistics.fmean(c) for c in curves], color=color, label=method)
        accuracy.fill_between(
            epochs,
            [100 * min(c) for c in curves],
            [100 * max(c) for c in curves],
            color=color,
            alpha=0.12,
            lw=0,
        )
        ratios = list(zip(*(run["conv_ratio_epochs"] for run in found)))
        ratio.plot(epochs, [statistics.fmean(c) for c in ratios], color=color)
        for run in found[:1]:
            steps = [bound["step"] for bound in run["bounds"]]
            bounds.plot(steps, [bound["mean"] for bound in run["bounds"]], color=color, marker=".")
            low, high = ([bound[key] for bound in run["bounds"]] for key in ("smallest", "largest"))
            bounds.fill_between(steps, low, high, color=color, alpha=0.12, lw=0)
    accuracy.set(xlabel="epoch", ylabel="test accuracy, %")
    ratio.set(xlabel="epoch", ylabel="conv and dense inputs, float32 / held", ylim=0)
    bounds.set(xlabel="step", ylabel="bound / standard deviation", ylim=0)
    accuracy.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
