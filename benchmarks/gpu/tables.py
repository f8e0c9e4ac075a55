"""What has been measured, as text: nothing of it is cut.

`python tables.py RESULTS.jsonl --csv FOLDER` writes what docs/benchmarks-gpu.md shows: gpu-codecs.csv, gpu-steps.csv,
gpu-kernels.csv, gpu-calls.csv.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Iterator
from pathlib import Path

from goals import goals
from results import Result, Results

OWN_KERNEL = re.compile(r"comptrain::(?:gpu::)?(?:\(anonymous namespace\)::|RunItems<comptrain::)(\w+)")


def tables(results: Results, rehearsal: bool = False) -> str:
    """Every result, then what they are held to, but for those of a rehearsal."""
    parts = [
        f"== {name}: {result.get('error', 'ok')}\n{result['text'].strip()}"
        for name, result in results.named("").items()
        if "text" in result
    ]
    parts += [
        cuszp_table(results),
        ops_table(results),
        step_table(results),
        kernel_table(results),
        batch_table(results),
        training_table(results),
    ]
    if not rehearsal:
        parts.append(goal_table(results))
    return "\n\n".join(filter(None, parts))


def table(head: str, rows: list[str]) -> str:
    columns = head.count("|") - 1
    return "\n".join([head, "|" + "---|" * columns, *rows]) if rows else ""


def cuszp_table(results: Results) -> str:
    """cuSZp's speeds on the activations of "codec-activations", at the same bound."""
    rows = [
        f"| {row['data']} | {row['mode']} | {row['ratio']:.2f} | {row['compress']:.0f} | {row['decompress']:.0f} |"
        for row in results.get("cuszp").get("rows", [])
    ]
    why = results["cuszp"].get("error") if "cuszp" in results else "not built here"
    return table(
        "| cuSZp, GB/s | mode | ratio | compress | decompress |",
        rows + ([f"| {why} | | | | |"] if why else []),
    )


def ops_table(results: Results) -> str:
    rows = [
        f"| {row['codec']} | {row['mb']} | {row['ratio']:.2f} "
        f"| {row['compress']:.1f} | {row['decompress']:.1f} | {row['copy']:.1f} |"
        for result in results.named("ops").values()
        for row in result.get("rows", [])
    ]
    return table(
        "| op, GB/s, medians (16 MB lie in the L2 cache) | MB | ratio | compress | decompress | copy |", rows
    )


def step_table(results: Results) -> str:
    rows = []
    for name, result in results.named("step-").items():
        stem = name.rpartition("-")[0]
        cells = compared(result, results.named(f"{stem}-plain").get(f"{stem}-plain", {}))
        rows.append(f"| {name} | {' | '.join(cells)} | {remarks(result)} |")
    return table("| step | a second | of plain | peak MB | plain / peak | remarks |", rows)


def kernel_table(results: Results) -> str:
    """Of each step under XLA the kernels that take longest."""
    rows = []
    for name, result in results.named("step-").items():
        found = result.get("kernels", {})
        if found.get("rows"):
            rows.append(
                f"| {name} | all of {found['kinds']} kinds | {found['runs']:.0f} | {found['kernels_us']:.0f} |"
            )
            rows += [f"| | {kernel} | {runs:.0f} | {us:.0f} |" for kernel, runs, us in found["rows"][:12]]
    return table("| one step | kernel | runs | us |", rows)


def batch_table(results: Results) -> str:
    """The largest batch of each search, how fast it is, and what stopped a search without an answer."""
    searches: dict[str, dict[int, Result]] = {}
    for name, result in results.named("batch-").items():
        stem, _, batch = name.rpartition("-")
        searches.setdefault(stem, {})[int(batch)] = result
    rows = []
    for stem, trials in searches.items():
        fits = [batch for batch, result in trials.items() if "images_s" in result]
        fails = [batch for batch, result in trials.items() if "does_not_fit" in result]
        errors = "; ".join(f"{b}: {r['error']}" for b, r in trials.items() if "error" in r)
        best = trials[max(fits)] if fits else {}
        cells = compared(best, {})
        rows.append(
            f"| {stem} | {max(fits, default=0)} | {min(fails, default='')} | {cells[0]} | {cells[2]} "
            f"| {errors or remarks(best)} |"
        )
    return table("| under the limit | largest batch | does not fit | a second | peak MB | remarks |", rows)


def training_table(results: Results) -> str:
    rows = []
    for name, result in results.named("training-").items():
        cells = ["", "", ""]
        if "accuracy" in result:
            cells = [
                f"{result['accuracy']:.4f}",
                f"{result['fit_s']:.0f}",
                f"{result['peak_bytes'] / 1e6:,.0f}",
            ]
        rows.append(f"| {name} | {' | '.join(cells)} | {remarks(result)} |")
    return table("| CIFAR-10 | accuracy | fit, s | peak MB | remarks |", rows)


def goal_table(results: Results) -> str:
    rows = [
        f"| {goal.what} | {figure(goal.least, 'g')} | {figure(goal.found, '.3f')} | {goal.verdict} |"
        for goal in goals(results)
    ]
    return table("| held to | at least | measured | |", rows)


def figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def compared(result: Result, plain: Result) -> list[str]:
    """a second, of plain, peak, plain / peak."""
    if "images_s" not in result:
        return [""] * 4
    cells = [f"{result['images_s']:.1f}", "", f"{result['peak_bytes'] / 1e6:,.0f}", ""]
    if result is not plain and "images_s" in plain:
        cells[1] = f"{result['images_s'] / plain['images_s']:.3f}"
        cells[3] = f"{plain['peak_bytes'] / result['peak_bytes']:.2f}" if result["peak_bytes"] else ""
    return cells


def remarks(result: Result) -> str:
    notes = [
        result.get("error"),
        f"does not fit: {result['does_not_fit']}" if "does_not_fit" in result else None,
        f"not compressed: {result['obstacle']}" if result.get("obstacle") else None,
        f"{result['hidden_s']:.3f} of {result['moving_s']:.3f} s of copies hidden"
        if "moving_s" in result
        else None,
    ]
    return "; ".join(filter(None, notes)).replace("|", "/")


def codec_rows(results: Results) -> Iterator[list[str]]:
    """The rates of codec_gpu's first table, for each tensor."""
    yield ["codec", "tensor", "MB", "ratio", "compress GB/s", "decompress GB/s", "device copy GB/s"]
    for result in results.named("codec-speed", "codec-activations").values():
        for line in result.get("text", "").splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) == 8 and cells[2].isdigit():
                yield [*cells[:5], *cells[6:]]


def step_rows(results: Results) -> Iterator[list[str]]:
    yield [
        "step",
        "images/s",
        "of plain's",
        "peak MB",
        "plain / peak",
        "first steps' peak MB",
        "ready after s",
    ]
    for name, result in results.named("step-").items():
        if "images_s" in result:
            stem = name.rpartition("-")[0]
            cells = compared(result, results.get(f"{stem}-plain"))
            yield [
                name.removeprefix("step-").replace("-", ", "),
                *cells,
                f"{result['first_peak_bytes'] / 1e6:,.0f}",
                f"{result['ready_s']:.0f}" if "ready_s" in result else "",
            ]


def own_kernel_rows(results: Results) -> Iterator[list[str]]:
    """Of compressed steps under XLA: microseconds of this package's kernels, and of all."""
    yield ["step", "kernel", "runs", "us"]
    for name, result in results.named("step-").items():
        found = result.get("kernels", {})
        own = [row for row in found.get("rows", []) if OWN_KERNEL.search(row[0])]
        for number, (kernel, runs, us) in enumerate(
            [["all", found["runs"], found["kernels_us"]], *own] if own else []
        ):
            step = "" if number else name.removeprefix("step-").replace("-", ", ")
            short = OWN_KERNEL.search(kernel)
            yield [step, short[1] if short else kernel, f"{runs:.0f}", f"{us:,.0f}"]


def call_rows(results: Results) -> Iterator[list[str]]:
    """Microseconds of a step's calls, each of all of its tensors; a column for each version that was measured."""
    of_versions = results.named("kernels-ResNet50")
    found: dict[tuple[str, str], list[str]] = {}
    for number, result in enumerate(of_versions.values()):
        for line in result.get("text", "").splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) == 3 and cells[2].isdigit() and ":" not in cells[1]:
                row = found.setdefault((cells[0], cells[1]), [""] * len(of_versions))
                row[number] = f"{int(cells[2]):,}"
    yield ["type", "call", *(result.get("of", name) for name, result in of_versions.items())]
    yield from ([*call, *row] for call, row in found.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--csv", type=Path, required=True)
    args = parser.parse_args()
    results, folder = Results(args.results), args.csv
    made = {
        "gpu-codecs": codec_rows(results),
        "gpu-steps": step_rows(results),
        "gpu-kernels": own_kernel_rows(results),
        "gpu-calls": call_rows(results),
    }
    for name, rows in made.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
