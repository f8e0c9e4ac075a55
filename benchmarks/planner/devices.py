"""Plans over devices: gaps, the planner's own time and memory, and how steps scale on paper.

    python benchmarks/planner/devices.py --out devices.jsonl
    python benchmarks/planner/devices.py --out devices.jsonl --plot docs/images/plan_devices_scaling.png

What the file has is not run again; then the tables are printed. Memory is measured in processes of their own.
"""

from __future__ import annotations

import argparse
import collections
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from synthetic import DEVICE
from synthetic_layers import decoder, layered

from tf_comptrain import planner

HARDWARE = Path(__file__).resolve().parents[2] / "examples" / "hardware"
KINDS = ("chain", "unet", "transformer", "decoder")
SIZES, SEEDS = (25, 200, 1000), (0, 1, 2)
BUDGET_S = 60.0  # on the clock: more than it needs, for machines that do other work too
SCALING_BUDGET_S = 4.0
SCALING_DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
OWN = [(devices, layers) for layers in (100, 300, 1000) for devices in (64, 256, 1024)]


def cases(parts: list[str]) -> list[dict]:
    found: list[dict] = []
    if "gap" in parts:
        found += [
            {"part": "gap", "kind": kind, "tensors": size, "seed": seed}
            for size in SIZES
            for kind in KINDS
            for seed in (SEEDS if kind != "decoder" else SEEDS[:1])
        ]
    if "own" in parts:
        found += [{"part": "own", "devices": devices, "layers": layers} for devices, layers in OWN]
    if "scaling" in parts:
        found += [
            {"part": "scaling", "mode": mode, "streams": streams, "devices": devices}
            for devices in SCALING_DEVICES
            for mode in ("weak", "strong")
            for streams in (True, False)
        ]
    return found


def run(case: dict) -> dict:
    """Plans one case."""
    start, processor = time.perf_counter(), time.process_time()
    plan = {"gap": gap, "own": own, "scaling": scaling}[case["part"]](case)
    return {
        **case,
        "seconds": time.perf_counter() - start,
        "processor_s": time.process_time() - processor,
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "step_s": plan.step_s,
        "gap": plan.gap,
        "feasible": plan.feasible,
        "microbatches": plan.microbatches,
        "stages": [[len(stage.layers), len(stage.devices), stage.split] for stage in plan.stages][:8],
        "stage_count": len(plan.stages),
        "peak_bytes": plan.peak_bytes,
        "limit": plan.limit,
        "batch": plan.batch,
        "not_kept": len(plan.storage),
    }


def gap(case: dict) -> planner.DevicePlan:
    """On four devices, with a tenth of what all tensors take when they are kept, beside the weights' state."""
    count = 4
    machine = DEVICE._replace(devices=count)
    if case["kind"] == "decoder":
        chain = decoder(max(case["tensors"] // 6, 1), 4096, 32)
    else:
        chain = layered(case["kind"], case["tensors"], case["seed"])
    saved = sum(tensor.bytes for layer in chain.layers for tensor in layer.saved)
    weights = sum(layer.weight_bytes for layer in chain.layers)
    state = weights * ((2 + chain.slots) / count + 1 - 1 / count)
    memory = int(saved / count * 0.1 + state)
    return planner.plan_devices(chain, machine, memory, budget_s=BUDGET_S)


def own(case: dict) -> planner.DevicePlan:
    machine = planner.hardware_from_json(HARDWARE / "h200x1024.json")
    chain = decoder(case["layers"] // 4, 4096, 4 * case["devices"])
    return planner.plan_devices(chain, machine, devices=case["devices"], budget_s=60.0)


def scaling(case: dict) -> planner.DevicePlan:
    """A decoder of 8.2 billion weights, 8,192 tokens a sequence; weak: 16 sequences a device, strong: 1,024 in all."""
    machine = planner.hardware_from_json(HARDWARE / "h200x1024.json")
    batch = 16 * case["devices"] if case["mode"] == "weak" else 1024
    chain = decoder(32, 4608, batch, tokens=8192)
    if not case["streams"]:
        machine = machine._replace(codecs={})
        chain = chain._replace(layers=tuple(map(_without_streams, chain.layers)))
    return planner.plan_devices(chain, machine, devices=case["devices"], budget_s=SCALING_BUDGET_S)


def _without_streams(layer: planner.Layer) -> planner.Layer:
    saved = (
        tensor._replace(options=tuple(o for o in tensor.options if not isinstance(o, planner.StreamOption)))
        for tensor in layer.saved
    )
    return layer._replace(saved=tuple(saved))


def tables(rows: list[dict]) -> str:
    lines: list[str] = []
    of = collections.defaultdict(list)
    for row in rows:
        of[row["part"]].append(row)
    if of["gap"]:
        lines += [
            "| network | " + " | ".join(f"{n} tensors" for n in SIZES) + " |",
            "|---|" + "---|" * len(SIZES),
        ]
        for kind in KINDS:
            cells = [_gaps([r for r in of["gap"] if r["kind"] == kind and r["tensors"] == n]) for n in SIZES]
            lines.append(f"| {kind} | " + " | ".join(cells) + " |")
        lines.append("")
    if of["own"]:
        lines += [
            "| layers | devices | processor seconds | resident | step | gap | stages x devices, microbatches |"
        ]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [
            f"| {4 * (r['layers'] // 4)} | {r['devices']:,} | {r['processor_s']:.0f} | "
            f"{r['resident_bytes'] / 1e6:.0f} MB | {r['step_s']:.3g} s | {100 * r['gap']:.2f}% | {_shape(r)} |"
            for r in sorted(of["own"], key=lambda r: (r["layers"], r["devices"]))
        ] + [""]
    for mode in ("weak", "strong"):
        found = [r for r in of["scaling"] if r["mode"] == mode]
        if found:
            lines += [
                f"| devices, {mode} | with streams | limit, plan | without | limit, plan |",
                "|---|---|---|---|---|",
            ]
            for devices in SCALING_DEVICES:
                cells = [
                    _scaled([r for r in found if r["devices"] == devices and r["streams"] == s])
                    for s in (True, False)
                ]
                lines.append(f"| {devices:,} | " + " | ".join(cells) + " |")
            lines.append("")
    return "\n".join(lines)


def _gaps(rows: list[dict]) -> str:
    if not rows:
        return ""
    gaps = ", ".join("none fits" if r["gap"] is None else f"{100 * r['gap']:.2f}%" for r in rows)
    return f"{gaps} ({max(r['processor_s'] for r in rows):.1f} s)"


def _shape(row: dict) -> str:
    return f"{row['stage_count']} x {row['stages'][0][1]} {row['stages'][0][2]}, {row['microbatches']}"


def _scaled(rows: list[dict]) -> str:
    if not rows:
        return " | "
    row = rows[0]
    if not row["feasible"]:
        return "does not fit | "
    return f"{row['batch'] / row['step_s']:.4g} /s | {row['limit']}, {_shape(row)}"


def draw(rows: list[dict], path: Path) -> None:
    """Sequences a second for each device, over devices."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    colours = {True: "#2a6fbb", False: "#d98324"}
    for axes, mode in zip(figure.subplots(1, 2, sharey=True), ("weak", "strong")):
        for streams, colour in colours.items():
            points = sorted(
                (r["devices"], r["batch"] / r["step_s"] / r["devices"])
                for r in rows
                if r["part"] == "scaling" and r["mode"] == mode and r["streams"] == streams and r["feasible"]
            )
            label = "with streams" if streams else "without"
            style = {"marker": "o", "markersize": 6 if streams else 3, "label": label}
            if points:
                axes.plot(*map(list, zip(*points)), color=colour, **style)
        what = "16 sequences a device" if mode == "weak" else "1,024 sequences in all"
        axes.set_title(f"{mode}: {what}", loc="left", fontsize="medium")
        axes.set_xscale("log", base=2)
        axes.set_xticks(SCALING_DEVICES, [str(n) for n in SCALING_DEVICES], fontsize="small")
        axes.set(xlabel="devices")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#e0e0e0", linewidth=0.6)
    highest = max(max(line.get_ydata()) for axes in figure.axes for line in axes.lines)
    figure.axes[0].set_ylim(0, 1.1 * highest)
    figure.axes[0].set_ylabel("sequences a second, each device")
    figure.axes[0].legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=150)


def _in_a_process(case: dict, out: Path) -> dict:
    command = [sys.executable, __file__, "--out", str(out), "--case", json.dumps(case)]
    return json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON lines of results; what it has is not run again"
    )
    parser.add_argument(
        "--parts", nargs="*", default=["gap", "own", "scaling"], choices=["gap", "own", "scaling"]
    )
    parser.add_argument("--plot", type=Path, help="image file for the scaling curves")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(run(json.loads(args.case))))
        return
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    for case in cases(args.parts):
        if any(case.items() <= row.items() for row in rows):
            continue
        result = _in_a_process(case, args.out) if case["part"] == "own" else run(case)
        rows.append(result)
        with args.out.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(case, f"{result['step_s']:.4g} s", result["gap"], file=sys.stderr)
    print(tables(rows))
    if args.plot and "scaling" in args.parts:
        draw(rows, args.plot)


if __name__ == "__main__":
    main()
