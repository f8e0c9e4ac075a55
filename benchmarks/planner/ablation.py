"""Methods of search at equal time: how far each one's plan is above the bound that is known by then.

    python benchmarks/planner/ablation.py --out ablation.jsonl

Every plan adds a line to the file; those that are there already are not made again. The table is printed from the file.
A gap is (step - bound) / step, where the bound is the highest that any method proved for that graph and limit; "none"
where no plan within the limit was found.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path

from synthetic import KINDS, network

from tf_comptrain.planner import plan_graph
from tf_comptrain.planner.effects import compile_graph
from tf_comptrain.planner.simulator import PlanState
from tf_comptrain.planner.solve import METHODS

_SIZES = (25, 200, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("ablation.jsonl"))
    parser.add_argument("--sizes", type=int, nargs="+", default=_SIZES, help="saved tensors of a graph")
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--budget", type=float, default=5.0, help="seconds for each plan")
    parser.add_argument("--limit", type=float, default=0.5, help="of the peak with everything kept")
    parser.add_argument("--offload", action="store_true", help="tensors may go to the host, too")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    options = parser.parse_args()
    for case in itertools.product(options.sizes, KINDS, options.seeds, options.methods):
        key = [*case, options.budget, options.limit, options.offload]
        if key not in [entry["key"] for entry in entries(options.out)]:
            with options.out.open("a") as file:
                file.write(json.dumps({"key": key, **measure(*case, options)}) + "\n")
    print(table(entries(options.out), options))


def entries(path: Path) -> list[dict]:
    """The file's lines."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measure(size: int, kind: str, seed: int, method: str, options: argparse.Namespace) -> dict:
    """One plan."""
    graph = network(kind, size, seed, options.offload)
    limit = int(options.limit * PlanState(compile_graph(graph)).measure()[1])
    start = time.monotonic()
    plan = plan_graph(graph, limit, method=method, seed=seed, budget_s=options.budget, tolerance=1e-4)
    return {
        "seconds": time.monotonic() - start,
        "step_s": plan.step_s if plan.feasible else None,
        "bound_s": plan.bound_s,
        "within": plan.peak_bytes <= limit,
    }


def table(found: list[dict], options: argparse.Namespace) -> str:
    """Rows of graphs, columns of methods; in each cell the median gap and the largest."""
    settings = [options.budget, options.limit, options.offload]
    found = [entry for entry in found if entry["key"][4:] == settings]
    lines = [f"| graph | {' | '.join(options.methods)} |", "|---" * (1 + len(options.methods)) + "|"]
    for size, kind in itertools.product(options.sizes, KINDS):
        cells = []
        for method in options.methods:
            gaps = [gap(found, [size, kind, seed, method]) for seed in options.seeds]
            cells.append(cell(gaps))
        lines.append(f"| {kind}, {size} tensors | {' | '.join(cells)} |")
    return "\n".join(lines)


def gap(found: list[dict], key: list) -> float | None:
    """The gap of one plan to the highest bound of its graph."""
    same = [entry for entry in found if entry["key"][:3] == key[:3]]
    bounds = [entry["bound_s"] for entry in same if entry["bound_s"] is not None]
    own = [entry for entry in same if entry["key"][3] == key[3]]
    if not own or own[0]["step_s"] is None or not bounds:
        return None
    return max(own[0]["step_s"] - max(bounds), 0.0) / own[0]["step_s"]


def cell(gaps: list[float | None]) -> str:
    known = [item for item in gaps if item is not None]
    if not known:
        return "none"
    failed = f", {len(gaps) - len(known)} none" if len(known) < len(gaps) else ""
    return f"{100 * statistics.median(known):.2f}% ({100 * max(known):.2f}%{failed})"


if __name__ == "__main__":
    main()
