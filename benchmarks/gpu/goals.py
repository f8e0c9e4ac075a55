"""What a GPU is held to, beside what has been measured: one line each, whether it has been measured or not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from results import Result, Results

LEAST_MEGABYTES = 64  # smaller tensors lie in the caches
SANITIZERS = ("memcheck", "racecheck", "synccheck")
# GB/s of uncompressed float32, writing and reading: of the kernels, of the ops.
KERNEL_RATES = {"plane": (2500, 2800), "zvc": (1500, 2000), "rans": (500, 600)}
OP_RATES = {"plane": (2000, 2500)}
# Of ResNet-50: type and engine -> share of the plain images a second, plain peak over ours.
STEPS: dict[tuple[str, str], tuple[float | None, float | None]] = {
    ("float32", "xla"): (0.95, 4.0),
    ("mixed_bfloat16", "xla"): (0.90, 2.6),
    ("float32", "executor"): (1.0, None),
}
BATCHES = (64, 256)
# Held to nothing of their own: network -> batch.
OTHERS = {"ResNet152": 128, "VGG16": 64, "decoder": 64, "ViT-B/16": 128}
LARGEST_BATCH = {"ResNet50": 4.0, "ResNet152": 4.0}
OVER_OTHERS = 1.15
SAME_ACCURACY = 0.01


class Goal(NamedTuple):
    """One figure and what it is held to.

    Attributes:
      what: What is measured.
      least: What it has to reach; None where nothing is asked.
      found: The figure; None where it has not been measured.
    """

    what: str
    least: float | None
    found: float | None

    @property
    def verdict(self) -> str:
        if self.found is None:
            return "not measured"
        if self.least is None:
            return ""
        return "met" if self.found >= self.least else "missed"


def goals(results: Results) -> Iterator[Goal]:
    yield from _correct(results)
    yield from _rates(results)
    yield from _steps(results)
    for net, least in LARGEST_BATCH.items():
        plain, ours = (_largest(results, net, variant)[0] for variant in ("plain", "compressed"))
        yield Goal(f"{net}, largest batch over plain's, XLA", least, _ratio(ours, plain))
    yield Goal(
        "ResNet50 under the limit, images/s over the best of others", OVER_OTHERS, _over_others(results)
    )
    plain, ours = (results.get(f"training-{variant}").get("accuracy") for variant in ("plain", "compressed"))
    lost = None if plain is None or ours is None else ours - plain
    yield Goal("CIFAR-10, accuracy less plain's", -SAME_ACCURACY, lost)


def _correct(results: Results) -> Iterator[Goal]:
    sanitizers = (f"sanitizer-{tool}" for tool in SANITIZERS)
    names = ["codec-shapes", *sanitizers, "gpu-check", "tests", "tests-xla"]
    for name in names:
        found = None if name not in results else float("error" not in results[name])
        yield Goal(f"{name} without an error", 1.0, found)


def _rates(results: Results) -> Iterator[Goal]:
    for codec, least in KERNEL_RATES.items():
        rows = [*_speed_rows(results.get("codec-activations"), codec)]
        for what, rate, at in zip(("compress", "decompress"), least, (4, 6)):
            yield Goal(
                f"{codec}, kernels, activations, {what}, GB/s",
                rate,
                min((row[at] for row in rows), default=None),
            )
    for codec, least in OP_RATES.items():
        rows = [row for row in results.get("ops").get("rows", []) if row["codec"] == codec]
        rows = [row for row in rows if row["mb"] >= LEAST_MEGABYTES]
        for what, rate in zip(("compress", "decompress"), least):
            yield Goal(f"{codec}, op, {what}, GB/s", rate, min((row[what] for row in rows), default=None))


def _speed_rows(result: Result, codec: str) -> Iterator[list[float]]:
    """Rows of codec_gpu's first table: codec, data, MB, ratio, compress, with read-back, decompress, device copy."""
    for line in result.get("text", "").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 8 and cells[0] == codec and float(cells[2]) >= LEAST_MEGABYTES:
            yield [0.0, 0.0, *map(float, cells[2:])]


def _steps(results: Results) -> Iterator[Goal]:
    for (dtype, mode), goals_of in STEPS.items():
        for batch in BATCHES:
            stem = f"step-ResNet50-{batch}-{dtype}-{mode}"
            yield from _step(results, stem, f"ResNet50, batch {batch}, {dtype}, {mode}", *goals_of)
    for net, batch in OTHERS.items():
        stem = f"step-{net}-{batch}-float32-xla-limit"
        yield from _step(results, stem, f"{net}, batch {batch}, float32, xla, under the limit", None, None)


def _step(
    results: Results, stem: str, what: str, speed: float | None, memory: float | None
) -> Iterator[Goal]:
    plain, ours = (results.get(f"{stem}-{variant}") for variant in ("plain", "compressed"))
    yield Goal(f"{what}, images/s of plain's", speed, _ratio(ours.get("images_s"), plain.get("images_s")))
    peaks = plain.get("peak_bytes"), ours.get("peak_bytes")
    yield Goal(f"{what}, plain's peak over ours", memory, _ratio(*peaks))


def _largest(results: Results, net: str, variant: str) -> tuple[int | None, float | None]:
    """The largest batch that fits, and its images a second; None where a search has no answer."""
    prefix = f"batch-{net}-{variant}-"
    trials = {
        int(found[1]): result
        for name, result in results.named(prefix).items()
        if (found := re.fullmatch(rf"{re.escape(prefix)}(\d+)", name))
    }
    fits = [batch for batch, result in trials.items() if "images_s" in result]
    return (max(fits), trials[max(fits)]["images_s"]) if fits else (None, None)


def _over_others(results: Results) -> float | None:
    ours = _largest(results, "ResNet50", "compressed")[1]
    others = [_largest(results, "ResNet50", variant)[1] for variant in ("plain", "recompute", "remat")]
    return None if None in others else _ratio(ours, max(filter(None, others), default=None))


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None
