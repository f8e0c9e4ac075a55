"""What XLA's compiler plans for training steps, plain, compressed and lossless: temporary memory, and its own time.

    python benchmarks/models/xla_memory.py --set networks --text tinyshakespeare.txt --out xla_memory.jsonl
    python benchmarks/models/xla_memory.py --set keras-hub --out xla_memory.jsonl
    python benchmarks/models/xla_memory.py --set kinds --out xla_memory.jsonl

No step runs (`tf_comptrain.memory.memory_analysis`). "networks" are those of peaks.py, "keras-hub" its
backbones of two blocks or six, "kinds" the trainings of tests/kinds. Each model has a process of its own and
adds a line to the file; those that are there already are not compiled again. Seconds are of tracing and
compiling.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

NETWORKS, HUB, KINDS = SETS = ("networks", "keras-hub", "kinds")
_TESTS = Path(__file__).resolve().parents[2] / "tests" / "kinds"
_VARIANTS = ("plain", "compressed", "lossless")
_CODECS = {"compressed": "plane", "lossless": "zvc"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--set", choices=SETS, default=NETWORKS)
    parser.add_argument("--models", nargs="+", help="of the set; default: all")
    parser.add_argument("--text", type=Path, help="text file for the decoder (random characters)")
    parser.add_argument("--out", type=Path, default=Path("xla_memory.jsonl"))
    args = parser.parse_args()
    for name in args.models or in_own_process(names, args.set):
        if (args.set, name) not in measured(args.out):
            try:
                found = in_own_process(measure, args.set, name, args.text)
            except BrokenProcessPool:  # the system has ended it
                print(f"{name}: its process was ended; with more memory free it may run.", file=sys.stderr)
                continue
            with open(args.out, "a") as file:
                file.write(json.dumps({"set": args.set, "model": name, **found}) + "\n")
    print(table(measured(args.out), args.set))


def measured(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {(entry["set"], entry["model"]): entry for entry in map(json.loads, lines)}


def table(found: dict[tuple[str, str], dict[str, Any]], which: str) -> str:
    lines = [
        "| model | plain | compressed | ratio | lossless | trace and compile, plain | compressed |",
        "|---|---|---|---|---|---|---|",
    ]
    for (set_, name), entry in found.items():
        if set_ != which:
            continue
        if "error" in entry:
            lines.append(f"| {name} | {entry['error']} | | | | | |")
            continue
        ratio = entry["plain"]["bytes"] / max(entry["compressed"]["bytes"], 1)
        plain, compressed, lossless = (f"{entry[variant]['bytes'] / 1e6:.1f} MB" for variant in _VARIANTS)
        seconds = " | ".join(f"{entry[variant]['seconds']:.0f} s" for variant in _VARIANTS[:2])
        lines.append(f"| {name} | {plain} | {compressed} | {ratio:.2f} | {lossless} | {seconds} |")
    return "\n".join(lines)


def in_own_process(function: Any, *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def names(which: str) -> list[str]:
    if which == NETWORKS:
        from nets import NETS

        return list(NETS)
    if which == HUB:
        import hub_models

        return [*hub_models.LANGUAGE_MODELS, *hub_models.VISION_MODELS]
    return list(_kinds())


def measure(which: str, name: str, text: Path | None) -> dict[str, Any]:
    program = {NETWORKS: _of_network, HUB: _of_backbone, KINDS: _of_kind}[which]
    found: dict[str, Any] = {}
    for variant in _VARIANTS:
        start = time.perf_counter()
        try:
            planned = program(name, variant, text)
        except Exception as error:  # what XLA cannot compile, and why, is a row too
            return {"error": f"{variant}: {str(error).strip().splitlines()[0][:120]}"}
        found[variant] = {"bytes": planned.temporary_bytes, "seconds": time.perf_counter() - start}
    return found


def _of_network(name: str, variant: str, text: Path | None) -> Any:
    from nets import NETS

    model, x, y = NETS[name].make("plain", NETS[name].batch, text)
    return _analysis(model, x, y, variant)


def _of_backbone(name: str, variant: str, text: Path | None) -> Any:
    import hub_models
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    if name in hub_models.LANGUAGE_MODELS:
        model, x, y = hub_models.language_model(name, hub_models.Sizes(), 1)
    else:
        model, x, y = hub_models.vision_model(name, 64, 16, 1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return _analysis(model, *tf.nest.map_structure(tf.constant, (x, y)), variant)


def _analysis(model: Any, x: Any, y: Any, variant: str) -> Any:
    import tf_comptrain as ct

    model.jit_compile = True
    if variant in _CODECS:
        ct.compress_model(model, codec=_CODECS[variant])
    return ct.memory.memory_analysis(model, x, y)


def _kinds() -> dict[str, Any]:
    sys.path[:0] = [str(_TESTS), str(_TESTS.parent)]
    from test_kinds import CASES

    return CASES


def _of_kind(name: str, variant: str, text: Path | None) -> Any:
    make = _kinds()[name].make
    import planned

    return planned.analysis(make, _CODECS.get(variant))


if __name__ == "__main__":
    main()
