"""Everything that a machine with a GPU should be asked, in one command; the tables come last.

    python benchmarks/gpu/run.py [--out results/gpu] [--budget-s 540] [--only codec step ...] [--quick]

| section   | asks                                                              | needs                     |
|-----------|-------------------------------------------------------------------|---------------------------|
| codec     | every kernel against the CPU on 1,000 random shapes               | nvcc, or codec_gpu, built |
| speed     | GB/s of codecs A, B and C at 16, 64 and 256 MB                    | the same                  |
| sanitizer | compute-sanitizer memcheck, racecheck, initcheck                  | that, compute-sanitizer   |
| build     | the op library, where none with GPU kernels loads                 | nvcc, g++, TensorFlow     |
| tests     | the tests that need a GPU, and those of XLA                       | TensorFlow, the library   |
| op        | GB/s of the ops with their read-back                              | the same                  |
| step      | ResNet-50, plain and compressed, XLA and not: images/s, peak      | the same                  |
| batch     | largest batch of ResNet-50 and -152, plain and compressed, XLA    | the same                  |

Each measurement runs in a process of its own, bounded in time, and leaves a JSON file in the folder: what is
there already is not repeated, so the same command goes on where it stopped. After --budget-s seconds none
begins any more, and none outlasts it: for machines that are lent for minutes. What a section needs and does
not find is said, and asked again next time; what failed is not, before its file is deleted. --quick asks each
question once, in small: a first look, no figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "build_native.py"
CODEC_PROGRAM = ROOT / "build" / "native" / "cuda" / "codec_gpu"
NO_GPU = 77  # the exit status that says skipped
SANITIZER_FOUND = 9
MARGIN = 0.08  # a batch that fits is the largest when one this much larger does not
MOST_TRIALS = 8
MIB = 1 << 20
ANSWER = "answer: "  # before a worker's result, among what its libraries print
TAIL = 6000  # characters of a program's output that are kept

Result = dict[str, Any]


class Measurement(NamedTuple):
    name: str
    needs: tuple[str, ...]
    limit_s: float
    measure: Callable[[float], Result]  # (seconds it may take) -> result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/gpu"))
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="begin and end within this time")
    parser.add_argument("--only", nargs="*", default=[], help="names of measurements begin with one of these")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)  # a worker's own call
    args = parser.parse_args()
    if args.work is not None:
        work = dict(args.work)
        print(ANSWER + json.dumps(WORKERS[work.pop("what")](**work)))
        return 0
    if not has_gpu():
        print(
            "There is no GPU here (nvidia-smi lists none): nothing was measured. On a machine with one run the "
            "same command; it needs nvcc, or a TensorFlow with CUDA, or both."
        )
        return NO_GPU
    args.out.mkdir(parents=True, exist_ok=True)
    return run_all(args.out, args.only, args.quick, time.monotonic() + args.budget_s)


def run_all(out: Path, only: list[str], quick: bool, deadline: float) -> int:
    machine = Machine()
    measured: dict[str, Result] = {}
    missing: dict[str, str] = {}
    left = []
    for one in measurements(out, quick):
        if only and not one.name.startswith(tuple(only)):
            continue
        path = out / f"{one.name}.json"
        if not path.exists():
            absent = next((text for need in one.needs if (text := machine.lacks(need))), "")
            if absent:
                missing[one.name] = absent
                continue
            limit_s = min(one.limit_s, deadline - time.monotonic() - 5)
            if limit_s < min(60, one.limit_s):
                left.append(one.name)
                continue
            print(f"{one.name} ...", flush=True)
            began = time.monotonic()
            try:
                result = one.measure(limit_s)
            except Exception as error:  # of the measurement's own code: the others go on
                result = {"error": f"{type(error).__name__}: {error}"}
            result["wall_s"] = round(time.monotonic() - began, 1)
            if result.get("timed_out") and limit_s < one.limit_s:
                left.append(one.name)  # the budget's fault: again next time
                continue
            if "text" in result:
                result["text"] = result["text"][-TAIL:]
            path.write_text(json.dumps(result, indent=1))
            if one.name == "build":
                machine = Machine()
        measured[one.name] = json.loads(path.read_text())
    report(measured)
    for name, why in missing.items():
        print(f"not run: {name}: {why}")
    # A batch that does not fit is an answer.
    failed = [
        name for name, result in measured.items() if result.get("error") and not name.startswith("batch")
    ]
    if failed:
        print(f"failed: {', '.join(failed)}; to ask again delete their files in {out}")
    if left:
        print(f"{len(left)} left for lack of time ({', '.join(left)}): run the same command again")
    return 1 if failed else 0


# --- What the machine has ---------------------------------------------------


def has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None and run(["nvidia-smi", "-L"], 60).get(
        "text", ""
    ).startswith("GPU")


def nvidia_smi(field: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return (run(command, 60).get("text", "").splitlines() or [""])[0].strip()


class Machine:
    """What there is to measure with; TensorFlow is asked once, in a process of its own."""

    def __init__(self):
        self._tensorflow: Result | None = None

    def lacks(self, need: str) -> str:
        """Why a need is not met; empty where it is."""
        if need == "codec program":
            built = CODEC_PROGRAM.exists() or shutil.which("nvcc") or os.environ.get("CUDA_HOME")
            return "" if built else f"there is no nvcc (PATH, CUDA_HOME) and no {CODEC_PROGRAM}"
        if need == "compute-sanitizer":
            return "" if compute_sanitizer() else "there is no compute-sanitizer (PATH, CUDA_HOME)"
        if self._tensorflow is None:
            self._tensorflow = worker({"what": "about"}, 300)
        about = self._tensorflow
        if "error" in about:
            return f"TensorFlow does not start with {sys.executable}: {about['error']}"
        if not about["gpus"]:
            return (
                f"TensorFlow {about['tensorflow']} sees no GPU: it needs a CUDA build and its CUDA libraries"
            )
        if need == "tensorflow":
            return ""
        return about["library"] or ""


def about() -> Result:
    """The worker's answer on TensorFlow and the op library."""
    import tensorflow as tf

    from tf_comptrain import _keras, native

    return {
        "tensorflow": tf.__version__,
        "gpus": len(tf.config.list_physical_devices("GPU")),
        "library": native.problem(),
        "gpu_kernels": "GPU" in _keras.kernel_devices("Comptrain>Compress"),
    }


# --- What is asked ----------------------------------------------------------


def measurements(out: Path, quick: bool) -> Iterator[Measurement]:
    """Correctness first, then speed, then what may end in lack of memory."""
    program, library = ("codec program",), ("library",)
    shapes = "50" if quick else "1000"
    yield Measurement("codec", program, 600, lambda s: codec_program([shapes, "0"], s))
    megabytes = ["16"] if quick else ["16", "64", "256"]
    yield Measurement("speed", program, 300, lambda s: codec_program(["0", *megabytes], s))
    for tool in ("memcheck", "racecheck", "initcheck"):
        few = "5" if quick else "40"
        yield Measurement(
            f"sanitizer-{tool}",
            (*program, "compute-sanitizer"),
            400,
            lambda s, tool=tool, few=few: sanitizer(tool, few, s),
        )
    yield Measurement("build", ("tensorflow",), 500, build_library)
    tests = ["tests/test_gpu.py", "tests/test_gpu_check.py", "tests/test_xla.py"]
    yield Measurement(
        "tests",
        library,
        600,
        lambda s: run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
            s,
            TF_COMPTRAIN_CUDA_ARCH=arch(),  # as built for the sections before
        ),
    )
    sizes = (16,) if quick else (16, 64, 256)
    yield Measurement("op", library, 300, lambda s: worker({"what": "ops", "megabytes": sizes}, s))
    for dtype in ("float32", "mixed_bfloat16"):
        for jit in (True, False):
            for batch in (16,) if quick else (64, 256):
                for compress in (False, True):
                    work = {
                        "what": "train", "model": "ResNet50", "batch": batch, "dtype": dtype, "jit": jit,
                        "compress": compress, "steps": 3 if quick else 20,
                    }  # fmt: skip
                    name = f"step-{batch}-{dtype}-{'xla' if jit else 'executor'}-{kind(compress)}"
                    yield Measurement(name, library, 400, lambda s, work=work: worker(work, s))
    for model in ("ResNet50",) if quick else ("ResNet50", "ResNet152"):
        for compress in (False, True):
            yield from largest_batch(out, model, compress, quick)


def kind(compress: bool) -> str:
    return "compressed" if compress else "plain"


def run(command: list[str], limit_s: float, **environment: str) -> Result:
    """{"text": the output} and, where the command failed, {"error": why}. Ends what the command started, too."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            result: Result = {"text": process.communicate(timeout=limit_s)[0]}
        except subprocess.TimeoutExpired:
            return {"error": f"took more than {limit_s:.0f} s", "timed_out": True}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        result["error"] = f"exit status {process.returncode}"
        result["status"] = process.returncode
    return result


def worker(work: Result, limit_s: float) -> Result:
    """What a function of WORKERS answers, in a process of its own."""
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, str(Path(__file__).resolve()), "--work", json.dumps(work)]
    result = run(command, limit_s, PYTHONPATH=python_path, TF_CPP_MIN_LOG_LEVEL="2")
    lines = result.get("text", "").strip().splitlines()
    answer = next((line for line in lines if line.startswith(ANSWER)), None)
    if "error" not in result and answer is not None:
        return json.loads(answer[len(ANSWER) :])
    why = result.get("error", "it gave no answer")
    return {**result, "error": f"{why}: {lines[-1][:300]}" if lines else why}


def arch() -> str:
    return f"sm_{nvidia_smi('compute_cap').replace('.', '')}"


def codec_program(arguments: list[str], limit_s: float) -> Result:
    """Builds and runs benchmarks/gpu/codec_gpu.cc; without nvcc runs what was built elsewhere."""
    if shutil.which("nvcc") or os.environ.get("CUDA_HOME"):
        command = [sys.executable, str(TOOL), "gpu", *arguments]
        return run(command, limit_s, TF_COMPTRAIN_CUDA_ARCH=arch())
    return run([str(CODEC_PROGRAM), *arguments], limit_s)


def compute_sanitizer() -> str | None:
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"
    return shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), str(toolkit)]))


def sanitizer(tool: str, shapes: str, limit_s: float) -> Result:
    if not CODEC_PROGRAM.exists():
        built = codec_program(["0", "0"], limit_s)
        if "error" in built:
            return built
    command = [str(compute_sanitizer()), "--tool", tool, "--error-exitcode", str(SANITIZER_FOUND)]
    result = run([*command, str(CODEC_PROGRAM), shapes, "0"], limit_s)
    if "not supported" in result.get("text", "").lower():
        result["error"] = "compute-sanitizer does not work on this machine"
    return result


def build_library(limit_s: float) -> Result:
    """Only where no library with GPU kernels loads: one that was built elsewhere is left as it is."""
    if worker({"what": "about"}, limit_s).get("gpu_kernels"):
        return {"text": "not needed: there is a library with GPU kernels"}
    return run(
        [sys.executable, str(TOOL), "ops"], limit_s, TF_COMPTRAIN_CUDA="1", TF_COMPTRAIN_CUDA_ARCH=arch()
    )


# --- The largest batch ------------------------------------------------------


def largest_batch(out: Path, model: str, compress: bool, quick: bool) -> Iterator[Measurement]:
    """Trials, each of them a measurement: two small ones, then where their peaks say that memory ends.

    Every size that fits has trained for some steps under XLA.
    """
    prefix = f"batch-{model}-{kind(compress)}-"

    def trial(batch: int) -> Measurement:
        work = {
            "what": "train", "model": model, "batch": batch, "dtype": "float32", "jit": True,
            "compress": compress, "steps": 3,
        }  # fmt: skip
        return Measurement(f"{prefix}{batch}", ("library",), 300, lambda s: worker(work, s))

    def trials() -> dict[int, int]:
        return {
            int(path.stem.rpartition("-")[2]): json.loads(path.read_text()).get("peak_bytes", 0)
            for path in out.glob(f"{prefix}*.json")
        }

    yield from map(trial, sorted(trials()))  # for the tables
    for _ in range(3 if quick else MOST_TRIALS):
        memory = nvidia_smi("memory.total")
        batch = next_batch(trials(), int(memory) * MIB) if memory.isdigit() else None
        if batch is None:
            return
        yield trial(batch)
        if batch not in trials():
            return  # not run: no time, or a need that is not met


def next_batch(trials: dict[int, int], memory_bytes: int) -> int | None:
    """The batch size to try next; None when the answer is known.

    Args:
      trials: Batch size -> peak bytes, 0 where it failed.
      memory_bytes: Of the card.
    """
    for first in (32, 64):
        if first not in trials:
            return first
    fits = max((batch for batch, peak in trials.items() if peak), default=0)
    fails = min((batch for batch, peak in trials.items() if not peak), default=None)
    if not fits or not trials[64]:
        return None
    if fails is None:
        growth = max((trials[64] - trials[32]) / 32, 1)
        guess = int(0.92 * (memory_bytes - trials[32]) / growth) + 32 if fits == 64 else int(fits * 1.1)
    else:
        guess = max((fits + fails) // 2, int(fails * 0.9))
        if fails - fits <= MARGIN * fails:
            return None
    batch = max(guess // 16 * 16, fits + 16)
    return batch if fails is None or batch < fails else None


# --- Workers: each in a process that imports TensorFlow ----------------------


def train(
    model: str, batch: int, dtype: str, jit: bool, compress: bool, steps: int, image: int = 224
) -> Result:
    """Trains on random images; images/s by the median step, peak over the resting level."""
    import numpy as np
    import tensorflow as tf
    from tensorflow import keras

    import tf_comptrain as ct
    from tf_comptrain.model import instrumentation

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(dtype)
    network = getattr(keras.applications, model)(weights=None, input_shape=(image, image, 3))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    network.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=jit)
    obstacle = ct.compress_model(network).obstacle if compress else None
    rng = np.random.default_rng(0)
    x = tf.random.stateless_normal((batch, image, image, 3), seed=(1, 2))
    y = tf.constant(rng.integers(0, 1000, batch))
    for _ in range(3):  # compiles; rates may rise once
        network.train_on_batch(x, y)
    measured = ct.memory.measure_step(network, x, y, steps=steps)
    result = {
        "model": model, "batch": batch, "dtype": dtype, "jit": jit, "compress": compress,
        "images_s": batch / measured.step_s, "peak_bytes": measured.peak_bytes, "obstacle": obstacle,
    }  # fmt: skip
    if compress:
        result["rate_changes"] = [list(change) for change in instrumentation(network).rate_changes]
    return result


def ops(megabytes: list[int]) -> Result:
    """GB/s of Compress and Decompress as TensorFlow runs them: three rounds of 20."""
    import tensorflow as tf

    from tf_comptrain import codecs, gpu_check, native

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    native.ops()
    problem = gpu_check.problem()
    if problem is not None:
        return {"error": f"the kernels failed their check: {problem}"}
    rows = []
    for name in ("plane", "rans", "zvc", "auto"):
        codec = codecs.get(name)
        for mb in megabytes:
            n = mb * MIB // 4
            x = tf.nn.relu(tf.random.stateless_normal((n // 64, 64), seed=(1, 2)))
            state = tf.constant(codecs.State(bound_set=0.058), tf.float32)
            _, stream, _ = codec.compress(x, state, 0.1, mid_rise=True)

            def compress(codec=codec, x=x, state=state):
                return codec.compress(x, state, 0.1, mid_rise=True)[1]

            def decompress(codec=codec, x=x, stream=stream):
                return codec.decompress(stream, x.shape, x.dtype, gate=x)

            gb = 4e-9 * n
            rows.append(
                {
                    "codec": name, "mb": mb, "ratio": 4 * n / int(tf.size(stream)),
                    "compress": [gb / seconds_of(compress) for _ in range(3)],
                    "decompress": [gb / seconds_of(decompress) for _ in range(3)],
                }
            )  # fmt: skip
    return {"rows": rows}


def seconds_of(call: Callable[[], Any], times: int = 20) -> float:
    """Of one call of an op, the device's work included."""
    import tensorflow as tf

    result = call()
    tf.reshape(result, [-1])[0].numpy()
    began = time.perf_counter()
    for _ in range(times):
        result = call()
    tf.reshape(result, [-1])[0].numpy()  # waits
    return (time.perf_counter() - began) / times


WORKERS: dict[str, Callable[..., Result]] = {"about": about, "train": train, "ops": ops}


# --- The tables -------------------------------------------------------------


def report(measured: dict[str, Result]) -> None:
    for name, result in measured.items():
        if "text" in result and not name.startswith(("step", "batch")):
            print(f"\n== {name}: {result.get('error', 'ok')}\n{result['text'][-1500:].rstrip()}")
    rows = measured.get("op", {}).get("rows", [])
    if rows:
        print(
            "\n| op, GB/s: best of three (all) | MB | ratio | compress | decompress |\n|---|---|---|---|---|"
        )
    for row in rows:
        rates = (
            f"{max(row[k]):.0f} ({', '.join(f'{v:.0f}' for v in row[k])})" for k in ("compress", "decompress")
        )
        print(f"| {row['codec']} | {row['mb']} | {row['ratio']:.2f} | {' | '.join(rates)} |")
    print("\n| training | images/s | of plain | peak | plain / peak | remarks |\n|---|---|---|---|---|---|")
    for name, result in measured.items():
        if name.startswith(("step", "batch")):
            print(table_row(name, result, measured))


def table_row(name: str, result: Result, measured: dict[str, Result]) -> str:
    remarks = [result.get("error") or "", result.get("obstacle") or ""]
    changes = len(result.get("rate_changes", ()))
    remarks.append(f"{changes} rates raised" if changes else "")
    text = "; ".join(filter(None, remarks))
    if "images_s" not in result:
        return f"| {name} | | | | | {text} |"
    speed = peak = ""
    plain = measured.get(name.replace("compressed", "plain"), {})
    if result["compress"] and "images_s" in plain:
        speed = f"{result['images_s'] / plain['images_s']:.3f}"
        peak = f"{plain['peak_bytes'] / result['peak_bytes']:.2f}"
    return f"| {name} | {result['images_s']:.0f} | {speed} | {result['peak_bytes'] / 1e6:,.0f} MB | {peak} | {text} |"


if __name__ == "__main__":
    sys.exit(main())
