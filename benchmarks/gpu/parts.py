"""What each part asks, most wanted first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from machine import TESTS, TESTS_OF_XLA, Machine
from results import Result, Results

MARGIN = 0.08  # a batch that fits is the largest when one this much larger does not
MOST_TRIALS = 6
INDEXABLE = 2**31 - 1  # elements of a tensor that a library of 32-bit indices takes
VARIANTS = ("compressed", "plain", "recompute", "remat")
LANGUAGE_MODELS = {"Gemma": 8, "MiniLM": 64}  # network -> batch
OFFLOADS = ("offload", "offload_zvc", "offload_plane")  # on the executor


class Measurement(NamedTuple):
    name: str
    limit_s: float
    measure: Callable[[float], Result]  # (seconds it may take) -> result
    needs: tuple[str, ...] = ()

    @property
    def is_trial(self) -> bool:
        """Of a search: the next one depends on it."""
        return self.name.startswith("batch-")


class Sizes(NamedTuple):
    """How much is asked.

    Attributes:
      small: Networks of a few narrow layers stand in for the real ones.
      shapes: Random tensors that every kernel gets.
      sanitized: Those under compute-sanitizer.
      megabytes: Of the tensors that codecs and ops are timed with.
      batches: Of ResNet-50; the first one in float32.
      steps: Timed ones.
      trials: The first two batches of a search.
      limit_bytes: Of device memory, for the searches and what is compared with them.
      epochs: Of the training.
      images: Of the training; the test set has a fifth of them.
      activations: Images that the activations are made of on which codecs are timed.
    """

    small: bool = False
    shapes: int = 1000
    sanitized: int = 40
    megabytes: tuple[int, ...] = (16, 64, 256)
    batches: tuple[int, int] = (64, 256)
    steps: int = 20
    trials: tuple[int, int] = (32, 64)
    limit_bytes: int = 40 * 10**9
    epochs: int = 10
    images: int = 50_000
    activations: int = 128


QUICK = Sizes(shapes=50, sanitized=5, megabytes=(16,), batches=(16, 32), steps=5, epochs=1, activations=16)
DRY = Sizes(True, 2, 1, (1,), (4, 8), 1, (8, 16), 12 * 10**6, 1, 100, 4)


def parts(machine: Machine, sizes: Sizes, results: Results) -> dict[int, Iterator[Measurement]]:
    """The measurements of each part; a search's depend on the results so far."""
    return {
        1: codecs(machine, sizes),
        2: first_steps(machine, sizes),
        3: other_steps(machine, sizes),
        4: larger_things(machine, sizes, results),
    }


def codecs(machine: Machine, sizes: Sizes) -> Iterator[Measurement]:
    def program(name: str, *arguments: int | str) -> Measurement:
        words = [str(a) for a in arguments]
        return Measurement(name, 400, lambda s: machine.codec_program(words, s), ("codec program",))

    yield program("codec-shapes", sizes.shapes, 0)
    if machine.device == "gpu":  # an emulated one would take hours
        yield program("kernels-ResNet50", 0, "ResNet50")
    for mb in sizes.megabytes:
        yield program(f"codec-speed-{mb}", 0, mb)
    made: dict[str, Any] = {"batch": sizes.activations, "small": sizes.small}
    for name, what, need in (
        ("codec-activations", machine.codec_speed, "codec program"),
        ("cuszp", machine.cuszp_speed, "cuSZp"),
    ):
        yield Measurement(
            name, 400, lambda s, what=what: machine.on_activations(what, s, **made), (need, "CIFAR-10")
        )
    if machine.device == "cpu":
        return  # compute-sanitizer watches GPUs only
    for tool in ("memcheck", "racecheck", "synccheck"):
        yield Measurement(
            f"sanitizer-{tool}",
            180,
            lambda s, tool=tool: machine.sanitizer(tool, str(sizes.sanitized), s),
            ("codec program", "compute-sanitizer"),
        )


def first_steps(machine: Machine, sizes: Sizes) -> Iterator[Measurement]:
    if machine.device == "gpu":
        yield Measurement("gpu-check", 200, lambda s: machine.worker("check", s))
    for jit in (True, False):
        for variant in ("plain", "compressed"):
            yield step(machine, sizes, "ResNet50", sizes.batches[0], variant, jit=jit)
    yield Measurement("ops", 300, lambda s: machine.worker("ops", s, megabytes=sizes.megabytes))
    if machine.device == "gpu":
        for name, paths in (("tests", TESTS), ("tests-xla", TESTS_OF_XLA)):
            yield Measurement(name, 400, lambda s, paths=paths: machine.tests(paths, s), ("tests",))


def other_steps(machine: Machine, sizes: Sizes) -> Iterator[Measurement]:
    for dtype, batches in (("mixed_bfloat16", sizes.batches), ("float32", sizes.batches[1:])):
        for batch in batches:
            for jit in (True, False):
                for variant in ("plain", "compressed"):
                    yield step(machine, sizes, "ResNet50", batch, variant, dtype, jit)
    for net, batch in LANGUAGE_MODELS.items():
        for variant in VARIANTS[:2]:
            yield step(machine, sizes, net, batch if not sizes.small else 2, variant, "mixed_bfloat16")
    yield step(machine, sizes, "ResNet50", sizes.batches[0], "remat")
    for variant in OFFLOADS:
        yield step(machine, sizes, "ResNet50", sizes.batches[0], variant, jit=False)


def larger_things(machine: Machine, sizes: Sizes, results: Results) -> Iterator[Measurement]:
    """All under XLA, with the same limit of memory."""
    others = {"ResNet152": 2, "VGG16": 1, "decoder": 1, "ViT-B/16": 2}
    first = sizes.batches[0]
    for variant in VARIANTS[:2]:
        yield from largest_batch(machine, sizes, results, "ResNet50", variant)
    for net, times in others.items():
        for variant in ("plain", "compressed"):
            yield step(machine, sizes, net, times * first, variant, limit=True)
    for variant in VARIANTS[2:]:
        yield from largest_batch(machine, sizes, results, "ResNet50", variant)
    for variant in ("plain", "compressed"):
        work = {"variant": variant, "epochs": sizes.epochs, "images": sizes.images, "small": sizes.small}
        yield Measurement(
            f"training-{variant}",
            400,
            lambda s, work=work: machine.worker("training", s, path=str(machine.cifar10), **work),
            ("CIFAR-10",),
        )
    for variant in VARIANTS[:2]:
        yield from largest_batch(machine, sizes, results, "ResNet152", variant)
    for net, times in others.items():
        for variant in VARIANTS[2:]:
            yield step(machine, sizes, net, times * first, variant, limit=True)


def step(
    machine: Machine, sizes: Sizes, net: str, batch: int, variant: str, dtype: str = "float32",
    jit: bool = True, limit: bool = False, name: str = "",
) -> Measurement:  # fmt: skip
    work: dict[str, Any] = {
        "net": net, "batch": batch, "variant": variant, "dtype": dtype, "jit": jit,
        "steps": sizes.steps, "small": sizes.small,
    }  # fmt: skip
    if jit and not limit and machine.device == "gpu":
        work["kernels"] = True
    if limit:
        work |= {"limit_bytes": sizes.limit_bytes, "memory_bytes": machine.memory_bytes}
    mode = ("xla" if jit else "executor") + ("-limit" if limit else "")
    name = name or f"step-{net}-{batch}-{dtype}-{mode}-{variant}"
    return Measurement(name, 400, lambda s: machine.worker("train", s, **work))


# --- The largest batch ------------------------------------------------------


def largest_batch(
    machine: Machine, sizes: Sizes, results: Results, net: str, variant: str
) -> Iterator[Measurement]:
    """Trials, each of them a measurement: two small ones, then where their peaks say that memory ends.

    Every size that fits has trained for some steps. Only a lack of memory says that one does not; any other
    failure ends the search without an answer.
    """
    prefix = f"batch-{net}-{variant}-"
    for _ in range(MOST_TRIALS + 1):
        tried = {int(name[len(prefix) :]): result for name, result in results.named(prefix).items()}
        if any("error" in result for result in tried.values()) or len(tried) >= MOST_TRIALS:
            return
        used = {batch: result.get("used_bytes", 0) for batch, result in tried.items()}
        largest = max((result.get("largest_tensor", 1) for result in tried.values()), default=1)
        batch = next_batch(used, sizes.limit_bytes, sizes.trials, INDEXABLE // largest)
        if batch is None:
            return
        name = f"{prefix}{batch}"
        yield step(
            machine, sizes._replace(steps=min(sizes.steps, 5)), net, batch, variant, limit=True, name=name
        )
        if name not in results:
            return  # no time


def next_batch(trials: dict[int, int], memory_bytes: int, firsts: tuple[int, int], most: int) -> int | None:
    """The batch size to try next; None when the answer is known.

    Args:
      trials: Batch size -> bytes in use at the peak, 0 where it does not fit.
      memory_bytes: That there are.
      firsts: The two sizes to begin with.
      most: The largest size to try.
    """
    for first in firsts:
        if first not in trials:
            return first
    fits = max((batch for batch, used in trials.items() if used), default=0)
    fails = min((batch for batch, used in trials.items() if not used), default=None)
    low, high = firsts
    if not trials[low] or not trials[high]:
        return None
    if fails is None:
        growth = max((trials[high] - trials[low]) / (high - low), 1)
        guess = int(0.95 * (memory_bytes - trials[low]) / growth) + low if fits == high else int(fits * 1.1)
    else:
        guess = max((fits + fails) // 2, int(fails * 0.9))
        if fails - fits <= MARGIN * fails:
            return None
    batch = min(max(guess // 16 * 16, fits + 16), most)
    return batch if batch > fits and (fails is None or batch < fails) else None
