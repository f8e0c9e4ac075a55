"""What the machine has, and programs that run on it within a time."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from results import Result

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "build_native.py"
WORKERS = Path(__file__).resolve().with_name("workers.py")
TESTS = ("tests/compression/test_gpu.py", "tests/storage/test_gpu_check.py")
TESTS_OF_XLA = ("tests/compression/test_xla.py",)
MIB = 1 << 20
ANSWER = "answer: "  # before a worker's result, among what its libraries print
_running: set[int] = set()  # process groups
_ending = threading.Event()
TURNS = "TF_COMPTRAIN_TURNS"  # names the file that those who run at once lock


@contextlib.contextmanager
def turn(alone: bool) -> Iterator[None]:
    """With the device alone, or beside others that time nothing; who has one of these leaves it first."""
    if TURNS not in os.environ:
        yield
        return
    with open(os.environ[TURNS], "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


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
        _running.add(process.pid)
        try:
            if _ending.is_set():
                raise SystemExit
            result: Result = {"text": process.communicate(timeout=limit_s)[0]}
        except subprocess.TimeoutExpired:
            return {"error": f"took more than {limit_s:.0f} s", "timed_out": True}
        finally:
            _end(process.pid)
            _running.discard(process.pid)
    if _ending.is_set():
        raise SystemExit  # what was killed has no result
    if process.returncode:
        result["error"] = f"exit status {process.returncode}"
    return result


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def end_all() -> None:
    """Ends this process and what its threads run, whose results are lost."""
    _ending.set()
    for group in list(_running):
        _end(group)
    sys.exit(128 + signal.SIGTERM)


def has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None and run(["nvidia-smi", "-L"], 60).get(
        "text", ""
    ).startswith("GPU")


def nvidia_smi(field: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    return (run(command, 60).get("text", "").splitlines() or [""])[0].strip()


def compute_sanitizer() -> str | None:
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"
    return shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), str(toolkit)]))


class Machine:
    """What there is to measure with.

    Args:
      device: "gpu", or "cpu" for a dry run.
      codec_binary: codec_gpu, built elsewhere; None builds it here, with nvcc.
      cifar10: An .npz of CIFAR-10, for the training and for activations.
      weights: Of keras.applications.ResNet50, for activations; None: those it begins with.
      cuszp: cuSZp's program.
    """

    def __init__(
        self, device: str = "gpu", codec_binary: Path | None = None, cifar10: Path | None = None,
        weights: Path | None = None, cuszp: Path | None = None,
    ):  # fmt: skip
        self.device, self.codec_binary, self.cifar10 = device, codec_binary, cifar10
        self.weights, self.cuszp = weights, cuszp
        self._arch = f"sm_{nvidia_smi('compute_cap').replace('.', '')}" if device == "gpu" else ""
        memory = nvidia_smi("memory.total") if device == "gpu" else ""
        self.memory_bytes = int(memory) * MIB if memory.isdigit() else 0

    def lacks(self, need: str) -> str:
        """Why a need is not met; empty where it is."""
        if need == "codec program" and self.codec_binary is None:
            can_build = self.device == "gpu" and TOOL.exists() and shutil.which(os.environ.get("CXX", "g++"))
            if not can_build or not (shutil.which("nvcc") or os.environ.get("CUDA_HOME")):
                return "there is no --codec-binary, and no nvcc and C++ compiler that could build it"
        if need == "compute-sanitizer" and not compute_sanitizer():
            return "there is no compute-sanitizer (PATH, CUDA_HOME)"
        if need == "tests" and not (importlib.util.find_spec("pytest") and (ROOT / TESTS[0]).exists()):
            return f"there is no pytest, or no {TESTS[0]}"
        if need == "CIFAR-10" and self.cifar10 is None:
            return "there is no --cifar10 FILE.npz"
        if need == "cuSZp" and self.cuszp is None:
            return "not built here: there is no --cuszp FILE, its program"
        return ""

    def codec_program(self, arguments: list[str], limit_s: float) -> Result:
        """Runs benchmarks/gpu/codec_gpu.cc; any exit status but 0 is a failure, 77 (no GPU) too."""
        command = [str(self.codec_binary)] if self.codec_binary else [sys.executable, str(TOOL), "gpu"]
        with turn(alone=True):
            return run([*command, *arguments], limit_s, TF_COMPTRAIN_CUDA_ARCH=self._arch)

    def on_activations(
        self, program: Callable[[list[dict], float], Result], limit_s: float, batch: int, small: bool
    ) -> Result:
        """What a program (files of workers.activations, seconds) says of activations that are made for it."""
        end = time.monotonic() + limit_s
        with tempfile.TemporaryDirectory() as folder:
            work = {"path": str(self.cifar10), "weights": str(self.weights or ""), "folder": folder}
            made = self.worker("activations", limit_s, batch=batch, small=small, **work)
            return made if "error" in made else program(made["files"], end - time.monotonic())

    def codec_speed(self, files: list[dict], limit_s: float) -> Result:
        data = [f"{file['path']}:{file['width']}:{file['channels']}:{file['bound']:g}" for file in files]
        return self.codec_program(["0", *data], limit_s)

    def cuszp_speed(self, files: list[dict], limit_s: float) -> Result:
        """Rows of GB/s in cuSZp's two modes for values that are not smooth; it prints MiB a millisecond."""
        end = time.monotonic() + limit_s
        rows = []
        for file in files:
            for mode in ("fixed", "plain"):
                command = [str(self.cuszp), "-i", file["path"], "-t", "f32", "-m", mode, "-d", "1"]
                result = run([*command, "-eb", "abs", f"{file['bound']:g}"], end - time.monotonic())
                found = re.findall(r"(?:speed|ratio): ([\d.]+)", result.get("text", ""))
                if "error" in result or len(found) != 3:
                    return {"error": "it printed no two speeds and a ratio", **result, "rows": rows}
                compress, decompress, ratio = map(float, found)
                rates = {"compress": compress * MIB / 1e6, "decompress": decompress * MIB / 1e6}
                rows.append({"data": Path(file["path"]).name, "mode": mode, "ratio": ratio, **rates})
        return {"rows": rows}

    def sanitizer(self, tool: str, shapes: str, limit_s: float) -> Result:
        """Runs it under compute-sanitizer, which ends with a status of its own where it finds something."""
        program = self.codec_binary or ROOT / "build" / "native" / "cuda" / "codec_gpu"
        if not program.exists() and "error" in (built := self.codec_program(["0", "0"], limit_s)):
            return built
        command = [str(compute_sanitizer()), "--tool", tool, "--error-exitcode", "9"]
        result = run([*command, str(program), shapes, "0"], limit_s)
        if "not supported" in result.get("text", "").lower():
            result["error"] = "compute-sanitizer does not work on this machine"
        return result

    def tests(self, paths: tuple[str, ...], limit_s: float) -> Result:
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *paths]
        return run(command, limit_s, PYTHONPATH=python_path(), TF_COMPTRAIN_CUDA_ARCH=self._arch)

    def worker(self, what: str, limit_s: float, **work) -> Result:
        """What a function of workers.py answers, in a process of its own."""
        command = [sys.executable, str(WORKERS), json.dumps({"what": what, **work})]
        environment = {"PYTHONPATH": python_path(), "TF_CPP_MIN_LOG_LEVEL": "2"}
        if self.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = "-1"
        result = run(command, limit_s, **environment)
        lines = result.get("text", "").strip().splitlines()
        answer = next((line for line in lines if line.startswith(ANSWER)), None)
        if "error" not in result and answer is not None:
            return json.loads(answer[len(ANSWER) :])
        why = result.get("error", "it gave no answer")
        return {**result, "error": f"{why}: {lines[-1][:300]}" if lines else why}


def python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
