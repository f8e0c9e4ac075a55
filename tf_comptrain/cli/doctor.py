"""`tf-comptrain doctor`: what is installed, what works here, what does not and why."""

from __future__ import annotations

import argparse
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from rich.text import Text

from tf_comptrain import _keras, codecs, native
from tf_comptrain.memory import counters
from tf_comptrain.render import text
from tf_comptrain.storage import engine_of_model, gpu_check
from tf_comptrain.version import __version__

_COMPRESS_OP = "Comptrain>Compress"
# What the codec's kernels ask of the processor (cc/codec/common/isa.cc).
_AVX2 = {"avx2", "bmi1", "bmi2", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vbmi", "avx512_vbmi2"}


_XLA_BY_ITSELF = 'XLA, which jit_compile="auto" chooses beside a GPU, but not in a tf.distribute strategy'
_EXECUTOR = "TensorFlow's executor, unless compile has jit_compile=True"


class Finding(NamedTuple):
    """One line of the report.

    Attributes:
      about: What was looked at.
      found: What was found.
      ok: True: works; False: broken; None: neither, a fact or something that is not active.
    """

    about: str
    found: str
    ok: bool | None = None


def examine() -> list[Finding]:
    """Looks at everything; loads the op library."""
    return [*_versions(), *_library(), *_devices(), *_active()]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `main`: none."""
    parser.set_defaults(function=main)


def main(args: argparse.Namespace) -> int:
    """Prints the findings; returns 1 when the op library cannot be used."""
    findings = examine()
    table = text.table_of("", ("", "what", "found"))
    marks = {True: Text("ok", "green"), False: Text("broken", "red"), None: Text("")}
    for finding in findings:
        table.add_row(marks[finding.ok], finding.about, finding.found)
    text.show(table)
    return 1 if any(finding.ok is False for finding in findings) else 0


def _versions() -> list[Finding]:
    return [
        Finding("tf_comptrain", __version__),
        Finding("Python", f"{platform.python_version()} on {platform.platform()}"),
        Finding("TensorFlow", tf.__version__),
        Finding("Keras", version("keras")),
        Finding("NumPy", np.__version__),
    ]


def _library() -> list[Finding]:
    problem = native.problem()
    if problem is not None:
        return [Finding("op library", problem, ok=False)]
    return [Finding("op library", str(native.library_path()), ok=True), _round_trip()]


def _round_trip() -> Finding:
    """Encodes and decodes a small tensor, and compares the error with the bound."""
    x = tf.nn.relu(tf.random.stateless_normal((8, 16, 16, 32), seed=(1, 2)))
    try:
        codec = codecs.get("plane")
        state = tf.constant(codecs.State(), tf.float32)
        _, stream, state = codec.compress(x, state, 0.1, mid_rise=True)
        x_hat = codec.decompress(stream, tf.shape(x), x.dtype, gate=x)
    except tf.errors.OpError as error:
        return Finding("codec round trip", error.message, ok=False)
    bound = codecs.State(*state.numpy().tolist()).bound_used
    largest = float(tf.reduce_max(tf.abs(x - x_hat)))
    ratio = x.shape.num_elements() * 4 / int(tf.size(stream))
    found = f"largest error {largest:.4f}, bound {bound:.4f}, {ratio:.1f}x smaller"
    return Finding("codec round trip", found, ok=largest <= bound)


def _devices() -> list[Finding]:
    gpus = [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
        for gpu in tf.config.list_physical_devices("GPU")
    ]
    counted = counters.peak_bytes() > 0
    return [
        Finding("processor", f"{len(os.sched_getaffinity(0))} cores, {_instruction_set()}"),
        Finding("GPUs", ", ".join(gpus) or "none"),
        Finding("engine of fit", _XLA_BY_ITSELF if gpus else _EXECUTOR),
        Finding(
            "memory accounting",
            "this TensorFlow counts the bytes of its CPU allocator"
            if counted
            else f"none: peaks read 0, memory.limit stops steps of XLA alone. {counters.HOW_TO_COUNT}",
        ),
    ]


def _instruction_set() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() not in ("x86_64", "AMD64") or not cpuinfo.exists():
        return f"{platform.machine()}: portable kernels"
    lines = cpuinfo.read_text().splitlines()
    flags = set(next((line for line in lines if line.startswith("flags")), "").split())
    if flags >= _AVX512:
        return "AVX-512 with VBMI2"
    return "AVX2" if flags >= _AVX2 else "neither AVX2 nor AVX-512: portable kernels"


def _active() -> list[Finding]:
    if not native.is_loaded():
        return [Finding("compression", "not active: the op library does not load")]
    kernels = _keras.kernel_devices(_COMPRESS_OP)
    obstacle = engine_of_model(xla=False).why_plain
    return [
        _feature(
            "compression",
            obstacle is None,
            "active in training steps of compressed models",
            f"not active, models train as plain Keras: {obstacle}",
        ),
        _gpu_kernels("GPU" in kernels),
        _feature(
            "XLA lowering",
            any(name.startswith("XLA") for name in kernels),
            "built in",
            "not active: this TensorFlow's headers have no XLA, models compiled with jit_compile=True train as "
            "plain Keras",
        ),
    ]


def _gpu_kernels(built: bool) -> Finding:
    if not built:
        return Finding("GPU kernels", "not active: this library has kernels for the CPU only")
    if not gpu_check.on_gpu():
        return Finding("GPU kernels", "built in; there is no GPU here to check them on")
    problem = gpu_check.problem()
    if problem is not None:
        return Finding("GPU kernels", f"not active, they failed their check: {problem}", ok=False)
    return Finding("GPU kernels", "built in; every op answers as on the CPU", ok=True)


def _feature(about: str, active: bool, if_active: str, if_not: str) -> Finding:
    return Finding(about, if_active, ok=True) if active else Finding(about, if_not)
