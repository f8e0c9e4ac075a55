"""Writes the tables of docs/climate.md and docs/particles.md from the rows of their runs.

    python examples/climate/nowcast.py --data mrms_precip.npz --arms plain compressed
    python examples/climate/nowcast.py --limit-mb 2000
    python examples/hep/recoils.py --data tpc3d_recoils.npz --arms plain compressed --seeds 10 --epochs 12
    python benchmarks/sciences/science_tables.py

Rows are those of climate_out/runs.jsonl, baselines.json and fields.jsonl, and recoils_out/runs.jsonl, in results/
beside this file. Their `data` is the name of the file alone.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path

from scipy import stats

RESULTS = Path(__file__).resolve().parent / "results"
TABLES = Path(__file__).resolve().parents[2] / "docs" / "tables"
HOW = {"accuracy, %": "{:.2f}", "rejection": "{:.1f}"}  # "{:.4f}" of others


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=TABLES)
    args = parser.parse_args()
    for name, table in TABLES_OF.items():
        with (args.out / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table())


def nowcast() -> list[list[str]]:
    """A row for each score, and for the memory."""
    of_arm = {arm: by_seed("nowcast", arm=arm) for arm in ("plain", "compressed")}
    without = json.loads((RESULTS / "nowcast-baselines.json").read_text())
    of_arm |= {
        name: {seed: {"scores": [found]} for seed in of_arm["plain"]} for name, found in without.items()
    }
    pairs = [("compressed", "plain"), ("plain", "advection"), ("compressed", "advection")]
    return [["", *of_arm, *map(" - ".join, pairs)], *scores(of_arm, pairs), *memory(of_arm, len(pairs))]


def fields() -> list[list[str]]:
    """The largest field of each arm."""
    lines = (RESULTS / "nowcast-fields.jsonl").read_text().splitlines()
    sizes = {line["arm"]: (line["side"], line["peak_bytes"]) for line in map(json.loads, lines)}
    plain = sizes["plain"][0]
    rows = (
        [arm, str(side), f"{peak / 1e6:.0f} MB", f"{(side / plain) ** 2:.2f}"]
        for arm, (side, peak) in sizes.items()
    )
    return [["", "pixels a side", "peak of a step", "pixels / plain"], *rows]


def recoils() -> list[list[str]]:
    """Likewise, with the smaller network."""
    of_arm = {arm: by_seed("recoils", arm=arm, points=256) for arm in ("plain", "compressed")}
    of_arm["smaller, plain"] = by_seed("recoils", arm="plain", points=128)
    pairs = [("compressed", "plain"), ("compressed", "smaller, plain")]
    return [["", *of_arm, *map(" - ".join, pairs)], *scores(of_arm, pairs), *memory(of_arm, len(pairs))]


TABLES_OF: dict[str, Callable[[], list[list[str]]]] = {
    "nowcast": nowcast,
    "nowcast-fields": fields,
    "recoils": recoils,
}


def by_seed(name: str, arm: str, **setting: object) -> dict[int, dict]:
    """The runs of an arm with a setting."""
    lines = map(json.loads, (RESULTS / f"{name}.jsonl").read_text().splitlines())
    chosen = (line for line in lines if line["arm"] == arm and setting.items() <= line["setting"].items())
    return {line["seed"]: line for line in chosen}


def scores(of_arm: dict[str, dict[int, dict]], pairs: list[tuple[str, str]]) -> list[list[str]]:
    """Means over the seeds, and changes within pairs of seeds with 95% intervals of Student's t."""
    last = {arm: {seed: run["scores"][-1] for seed, run in runs.items()} for arm, runs in of_arm.items()}
    found = []
    for name in next(iter(last["plain"].values())):
        how = HOW.get(name, "{:.4f}")
        means = [how.format(statistics.fmean(each[name] for each in runs.values())) for runs in last.values()]
        found.append([name, *means, *(change(name, last[ours], last[other], how) for ours, other in pairs)])
    return found


def change(name: str, ours: dict[int, dict], other: dict[int, dict], how: str) -> str:
    differences = [ours[seed][name] - other[seed][name] for seed in sorted(ours.keys() & other.keys())]
    mean, count = statistics.fmean(differences), len(differences)
    half = stats.t.ppf(0.975, count - 1) * statistics.stdev(differences) / math.sqrt(count)
    how = how.replace(":", ":+")
    return f"{how.format(mean)} [{how.format(mean - half)}, {how.format(mean + half)}]"


def memory(of_arm: dict[str, dict[int, dict]], pairs: int) -> list[list[str]]:
    """Of a step, as the first seed's run has measured it; the first two arms are plain and compressed."""
    first = [runs[min(runs)].get("memory") for runs in of_arm.values()]
    found = []
    for name, field in (("saved for the backward pass", "saved_bytes"), ("peak of a step", "peak_bytes")):
        sizes = [f"{each[field] / 1e6:.1f} MB" if each else "" for each in first]
        less = f"{first[0][field] / first[1][field]:.1f} times less"
        found.append([name, *sizes, less, *[""] * (pairs - 1)])
    return found


if __name__ == "__main__":
    main()
