"""Everything that a machine with a GPU should be asked, in parts of at most ten minutes; the tables come last.

    python benchmarks/gpu/run.py [--library FILE] [--codec-binary FILE] [--cifar10 FILE] [--weights FILE]
                                 [--cuszp FILE] [--out results/gpu.jsonl] [--part N] [--budget-s 540]
                                 [--only NAME ...] [--again NAME ...] [--quick]

| part | asks                                                                                                    |
|------|---------------------------------------------------------------------------------------------------------|
| 1    | every kernel against the CPU on 1,000 random shapes; GB/s of plane, rans and zvc and of their kernels    |
|      | beside a device copy, on made-up tensors and on activations of ResNet-50, there beside cuSZp;            |
|      | compute-sanitizer memcheck, racecheck, synccheck                                                         |
| 2    | the ops' check; ResNet-50, batch 64, float32: plain and compressed, XLA (its kernels, too) and not; the  |
|      | ops beside a copy; the GPU's tests                                                                      |
| 3    | ResNet-50 in mixed_bfloat16, batch 64 and 256; float32, batch 256; Gemma and MiniLM in mixed_bfloat16;  |
|      | keras.remat; offload                                                                                    |
| 4    | under 40 GB: the largest batches of ResNet-50 and -152; ResNet-152, VGG-16, decoder, ViT-B/16; plain,    |
|      | compressed, ct.Recompute and keras.remat; a training on CIFAR-10                                         |

Without --part the first unfinished part runs: the same command again goes on where the last one stopped, be it at
its end, at its budget or killed. Each measurement runs in a process of its own, bounded in time, and adds a line
to the file of results when it is known. The last table has what a GPU is held to (goals.py), met, missed or not
measured. What failed is not measured again before it is named after --again.

The op library is brought along, built elsewhere with TF_COMPTRAIN_CUDA=1: --library copies it to tf_comptrain/,
where it may lie already. benchmarks/gpu/codec_gpu.cc is compiled here where nvcc and g++ are, or brought along too
(--codec-binary). Activations are those of the images of --cifar10, in a network with --weights or as it begins;
--cuszp is the program that cuSZp's build installs. The first line says `gpu_kernels true`; otherwise the second
one says why nothing is measured. --device cpu runs through all of it in a few minutes on the CPU, in small: a
rehearsal, whose figures mean nothing (--codec-binary build/native/codec/emulated_gpu is the program for it).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import parts
from machine import ROOT, TURNS, Machine, end_all, has_gpu
from parts import Measurement
from results import Results
from tables import tables

NO_GPU = 77  # the exit status that says skipped
LEAST_S = 60  # no measurement begins with less than this, or its own limit


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--library", type=existing, help="the op library, built elsewhere")
    parser.add_argument("--codec-binary", type=existing, help="codec_gpu, built elsewhere")
    parser.add_argument(
        "--cifar10", type=existing, help="an .npz of CIFAR-10, see benchmarks/accuracy/data.py"
    )
    parser.add_argument(
        "--weights",
        type=existing,
        help="of keras.applications.ResNet50, whose activations codecs are timed on",
    )
    parser.add_argument("--cuszp", type=existing, help="cuSZp's program, built elsewhere")
    parser.add_argument("--out", type=Path, help="(results/gpu.jsonl)")
    parser.add_argument("--part", type=int, nargs="+", choices=(1, 2, 3, 4))
    parser.add_argument(
        "--at-once", type=int, default=1,
        help="measurements made ready at once (%(default)s); what is timed waits for them all",
    )  # fmt: skip
    parser.add_argument(
        "--budget-s", type=float, default=540, help="begin and end within this time (%(default)s)"
    )
    parser.add_argument(
        "--only", nargs="*", default=[""], help="names of measurements begin with one of these"
    )
    parser.add_argument("--again", nargs="*", default=[], help="measure these names anew")
    parser.add_argument("--quick", action="store_true", help="each question once, in small")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu", help="cpu: a rehearsal")
    args = parser.parse_args()
    deadline = time.monotonic() + args.budget_s
    signal.signal(signal.SIGTERM, lambda *_: end_all())
    if args.device == "gpu" and not has_gpu():
        print(
            "There is no GPU here (nvidia-smi lists none): nothing was measured. On a machine with one run the "
            "same command; see --help for what to bring along."
        )
        return NO_GPU
    if args.library:
        install(args.library)
    machine = Machine(args.device, args.codec_binary, args.cifar10, args.weights, args.cuszp)
    why_not = first_lines(machine)
    if why_not:
        print(why_not)
        return 1
    sizes = parts.DRY if args.device == "cpu" else parts.QUICK if args.quick else parts.Sizes()
    rehearsal = "-rehearsal" if args.device == "cpu" else "-quick" if args.quick else ""
    results = Results(args.out or Path(f"results/gpu{rehearsal}.jsonl"))
    if args.again:
        results.forget(*args.again)
    with tempfile.NamedTemporaryFile() as turns:
        os.environ.setdefault(TURNS, turns.name)
        return run_parts(machine, sizes, results, args.part, tuple(args.only), deadline, args.at_once)


def existing(text: str) -> Path:
    path = Path(text).resolve()
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"must be a file, and there is no {text!r}")
    return path


def install(library: Path) -> None:
    """Copies the op library to where the package looks for it."""
    if not re.fullmatch(r"_comptrain_ops_tf\d+_\d+\.so", library.name):
        raise SystemExit(
            "--library must have the name that tools/build_native.py gave it, _comptrain_ops_tf<M>_<m>.so, which "
            f"says what TensorFlow it is for. Received: {library.name!r}."
        )
    target = ROOT / "tf_comptrain" / library.name
    if library != target.resolve():
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copy2(library, temporary)
        os.replace(temporary, target)


def first_lines(machine: Machine) -> str:
    """Prints whether there are GPU kernels; why nothing can be measured, empty where it can."""
    about = machine.worker("about", 300)
    kernels = bool(about.get("gpu_kernels") and about.get("gpus"))
    print(f"gpu_kernels {str(kernels).lower()}", flush=True)
    if "error" in about:
        return f"TensorFlow does not start with {sys.executable}: {about['error']}"
    if about["library"]:
        return about["library"]
    print(f"TensorFlow {about['tensorflow']}, {', '.join(about['gpus']) or 'no GPU'}", flush=True)
    if kernels or machine.device == "cpu":
        return ""
    if not about["gpus"]:
        return f"TensorFlow {about['tensorflow']} sees no GPU: it needs a CUDA build and its CUDA libraries"
    return "The op library has no GPU kernels: bring one along that was built with TF_COMPTRAIN_CUDA=1 (--library FILE)"


def run_parts(
    machine: Machine,
    sizes: parts.Sizes,
    results: Results,
    numbers: list[int] | None,
    only: tuple[str, ...],
    deadline: float,
    at_once: int = 1,
) -> int:
    """Runs parts, the first unfinished one by default, and prints the tables; 1 where something of it failed."""
    if numbers is None:
        following = next_part(machine, sizes, results, only)
        if following is None:
            print("All parts are finished.")
        numbers = [following or max(parts.parts(machine, sizes, results))]
    print(f"part {', '.join(map(str, numbers))}", flush=True)
    missing: dict[str, str] = {}
    left: list[str] = []

    def in_time(one: Measurement) -> None:
        limit_s = min(one.limit_s, deadline - time.monotonic() - 5)
        if limit_s < min(LEAST_S, one.limit_s) or not measure(one, limit_s, results):
            left.append(one.name)

    asked: list[Future] = []
    with ThreadPoolExecutor(at_once) as pool:
        for number in numbers:
            for one in chosen(parts.parts(machine, sizes, results)[number], only):
                if one.name in results:
                    continue
                if absent := lacks(machine, one):
                    missing[one.name] = absent
                    continue
                asked.append(pool.submit(in_time, one))
                if at_once == 1 or one.is_trial:
                    asked[-1].result()  # what is asked next depends on it
    for one_asked in asked:
        one_asked.result()  # a result that could not be written is an error
    print(f"\n{tables(results, rehearsal=machine.device == 'cpu')}\n")
    for name, why in missing.items():
        print(f"not measured: {name}: {why}")
    failed = [name for name, result in results.named("").items() if "error" in result]
    if failed:
        print(f"failed: {', '.join(failed)}; to measure them again name them after --again")
    if left:
        print(f"{len(left)} left for lack of time ({', '.join(left)}): run the same command again")
    following = next_part(machine, sizes, results, only)
    print(f"results: {results.path}; " + (f"next: part {following}" if following else "nothing is left"))
    return 1 if failed else 0


def measure(one: Measurement, limit_s: float, results: Results) -> bool:
    """Whether there is a result now; there is none where the budget, not its own limit, cut it short."""
    print(f"{one.name} ...", flush=True)
    began = time.monotonic()
    try:
        result = one.measure(limit_s)
    except Exception as error:  # of the measurement's own code: the others go on
        result = {"error": f"{type(error).__name__}: {error}"}
    if result.pop("timed_out", False) and limit_s < one.limit_s:
        return False
    results.add(one.name, {**result, "wall_s": round(time.monotonic() - began, 1)})
    return True


def chosen(measurements: Iterator[Measurement], only: tuple[str, ...]) -> Iterator[Measurement]:
    return (one for one in measurements if one.name.startswith(only))


def lacks(machine: Machine, one: Measurement) -> str:
    return next(filter(None, map(machine.lacks, one.needs)), "")


def next_part(machine: Machine, sizes: parts.Sizes, results: Results, only: tuple[str, ...]) -> int | None:
    """The first part with something that can be measured and has not been."""
    for number, measurements in parts.parts(machine, sizes, results).items():
        waiting = (one for one in chosen(measurements, only) if one.name not in results)
        if any(not lacks(machine, one) for one in waiting):
            return number
    return None


if __name__ == "__main__":
    sys.exit(main())
