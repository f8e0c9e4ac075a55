"""Compiles the C++ (and CUDA) sources: the op library and the codec tests.

Used by setup.py, the Makefile and .ci/run; bazel/flags.bzl and cc/kernels/xla/BUILD
repeat its flags for Bazel.
Needs only the standard library, a C++17 compiler and, for the op library, an
installed TensorFlow, whose version ends up in the library's name: a C++ op
library is valid for one TensorFlow minor version only.

    python tools/build_native.py ops            # tf_comptrain/_comptrain_ops_tf<M>_<m>.so
    python tools/build_native.py test [name..]  # build and run the *_test.cc of cc/codec and cc/offload, of all folders
                                                # or of those or the tests named, and the CUDA sources on the CPU
                                                # (emulated_gpu); --sanitize: with checks
    python tools/build_native.py bench          # build the programs of benchmarks/codec into build/native/codec
    python tools/build_native.py gpu [args..]   # build and run benchmarks/gpu/codec_gpu.cc: needs nvcc and a GPU
    python tools/build_native.py fuzz [name..]  # run cc/codec/testing/fuzz/*_fuzz.cc with libFuzzer, --runs times each

Environment: CXX, CXXFLAGS and LDFLAGS (appended), CUDA_HOME, TF_COMPTRAIN_CUDA (0 = never, 1 = fail
without nvcc, unset = where nvcc is found and TensorFlow is a CUDA build), TF_COMPTRAIN_CUDA_ARCH (nvcc's
-arch; all-major).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CODEC = ROOT / "cc/codec"
PLAIN = (CODEC, ROOT / "cc/offload")  # C++ without TensorFlow
TESTING = CODEC / "testing"  # what only tests need
BUILD = ROOT / "build" / "native"

# As tf_comptrain/backend.py has them: what it refuses is not worth minutes of compiling.
NEWEST_REFUSED, LEGACY = (2, 17), (2, 15)
# No contraction: streams are byte-identical on every instruction set. No traps: with them GCC makes no vectors of a
# choice between two numbers.
CODEC_FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-fPIC", "-Wall", "-Wextra"]
KERNEL_FLAGS = ["-std=c++17", "-O2", "-fPIC", "-Wall"]
# Every access outside a buffer and every undefined operation ends the program.
SANITIZE_FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-O1"]
NVCC_FLAGS = ["-std=c++17", "-O3", "-fmad=false", "-Xcompiler", "-fPIC,-ffp-contract=off"]
GPU_PROGRAM = "benchmarks/gpu/codec_gpu.cc"  # compares every kernel with the CPU
NO_GPU = 77  # the exit status with which it says that it found none
# For a CPU that runs the threads of a GPU in turn: cc/codec/testing/emulated_gpu.
EMULATED_GPU = "emulated_gpu"
EMULATED_SHAPES = "12"  # random ones that are tried
EMULATED_FLAGS = [
    *("-x", "c++", "-D__CUDACC__", "-U_FORTIFY_SOURCE", f"-I{TESTING / EMULATED_GPU}"),
    *("-include", "cuda_runtime.h"),  # as nvcc does
    *("-Wno-unknown-pragmas", "-Wno-unused-function"),
]
IS_X86 = platform.machine() in ("x86_64", "AMD64")
# Instruction sets are chosen at run time, so they belong to single files: avx2.cc, *_avx2.cc.
ISA_FLAGS = {
    "avx2.cc": ["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mf16c"],
    "avx512.cc": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mavx512vbmi",
        "-mavx512vbmi2",
        "-mbmi",
        "-mbmi2",
        "-mf16c",
    ],
}


class BuildError(RuntimeError):
    """The build cannot go on; the message says what to do."""


class TensorFlow(NamedTuple):
    """What the installed TensorFlow asks of code that is loaded into it."""

    version: str
    compile_flags: list[str]
    link_flags: list[str]
    is_cuda_build: bool

    @property
    def tag(self) -> str:
        return "tf" + "_".join(self.version.split(".")[:2])

    @property
    def include(self) -> Path:
        return next(Path(f[len("-isystem") :]) for f in self.compile_flags if f.startswith("-isystem"))

    @property
    def has_xla_headers(self) -> bool:
        """Whether all is there of XLA that cc/kernels/xla includes: since TensorFlow 2.20."""
        return (self.include / "xla/ffi/api/ffi.h").exists()

    def xla_flags(self) -> list[str]:
        """What XLA's headers need beyond TensorFlow's own: those of the libraries that it uses."""
        external = self.include / "external"
        folders = [*sorted(p for p in external.iterdir() if p.is_dir()), external / "farmhash_archive/src"]
        # GCC takes the small vectors inside XLA's shapes for uninitialized.
        return [*(f"-isystem{folder}" for folder in folders), "-Wno-maybe-uninitialized"]


class Cuda(NamedTuple):
    """A CUDA toolkit."""

    nvcc: str
    home: Path


# --- What is installed ------------------------------------------------------


def find_tensorflow() -> TensorFlow:
    """Asks the TensorFlow of the running Python; imports it in a child process."""
    code = (
        "import json, tensorflow as tf; print(json.dumps("
        "[tf.__version__, tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags(), "
        "bool(tf.sysconfig.get_build_info().get('is_cuda_build'))]))"
    )
    env = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    if run.returncode != 0:
        reason = run.stderr.strip().splitlines()[-1:] or ["no message"]
        raise BuildError(
            f"tf_comptrain compiles its ops against the installed TensorFlow, and {sys.executable} "
            f"cannot import one ({reason[0]}). Install it first (pip install tensorflow-cpu, or "
            "'tensorflow[and-cuda]' for a GPU), then run: pip install --no-build-isolation ."
        )
    version, compile_flags, link_flags, is_cuda_build = json.loads(run.stdout.strip().splitlines()[-1])
    minor = tuple(int(part) for part in version.split(".")[:2])
    if minor <= NEWEST_REFUSED and minor != LEGACY:
        raise BuildError(
            f"tf_comptrain needs TensorFlow 2.18 or newer, or the legacy lane's 2.15; {sys.executable} has {version}. "
            "Run: pip install 'tensorflow-cpu>=2.21' (with a GPU: 'tensorflow[and-cuda]>=2.21'), then build again."
        )
    # TensorFlow's headers are system headers: their warnings are not ours.
    compile_flags = ["-isystem" + f[2:] if f.startswith("-I") else f for f in compile_flags]
    if minor == (2, 20):
        # Its headers log numbers by a template of Abseil's, which GCC names otherwise than the Clang that built
        # TensorFlow. Without messages nothing is to be linked; a check that fails still ends the process.
        compile_flags.append("-DABSL_MIN_LOG_LEVEL=4")
    return TensorFlow(version, compile_flags, link_flags, is_cuda_build)


def find_cuda() -> Cuda | None:
    """The CUDA toolkit of CUDA_HOME or of the nvcc on PATH; None builds for the CPU only."""
    wish = os.environ.get("TF_COMPTRAIN_CUDA", "")
    if wish not in ("", "0", "1"):
        raise BuildError(f"TF_COMPTRAIN_CUDA must be 0, 1 or unset, not {wish!r}.")
    if wish == "0":
        return None
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which("nvcc", path=os.path.join(home, "bin") if home else None)
    if nvcc:
        # nvcc may be a wrapper elsewhere; it knows its own toolkit.
        told = subprocess.run([nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True)
        top = [line[len("#$ TOP=") :] for line in told.stderr.splitlines() if line.startswith("#$ TOP=")]
        return Cuda(nvcc, Path(os.path.realpath(top[0].strip() if top else home or Path(nvcc).parent.parent)))
    if wish == "1":
        raise BuildError(
            "TF_COMPTRAIN_CUDA=1 asks for GPU kernels, but there is no nvcc in "
            f"{home + '/bin (CUDA_HOME)' if home else 'PATH'}. Set CUDA_HOME to a CUDA toolkit, or "
            "TF_COMPTRAIN_CUDA=0 to build for the CPU only."
        )
    return None


# --- Compiling --------------------------------------------------------------


class Unit(NamedTuple):
    """One source file and the command, up to the output, that compiles it."""

    source: Path
    object: Path
    command: list[str]


def cores() -> int:
    return len(os.sched_getaffinity(0))


def cxx() -> str:
    return os.environ.get("CXX", "g++")


def extra_flags(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))


def object_file(folder: str, source: Path) -> Path:
    """Where the object of a source is, below a folder of build/native."""
    return BUILD / folder / source.relative_to(ROOT).with_name(source.name + ".o")


def codec_unit(
    source: Path, folder: str = "codec", more_flags: Sequence[str] = (), compiler: str = ""
) -> Unit:
    """A file of `PLAIN`."""
    flags = [*CODEC_FLAGS, *more_flags, f"-I{ROOT}"]
    if IS_X86:
        for ending, isa in ISA_FLAGS.items():
            if source.name.endswith(ending):
                flags = flags + isa
    return Unit(source, object_file(folder, source), [compiler or cxx(), *flags, *extra_flags("CXXFLAGS")])


def kernel_unit(source: Path, tf: TensorFlow, cuda: Cuda | None) -> Unit:
    """One of `kernel_sources`: compiled as TensorFlow was, for any x86-64."""
    flags = KERNEL_FLAGS + [f"-I{ROOT}", *tf.compile_flags]
    folder = tf.tag
    if "xla" in (source.stem, source.parent.name):
        flags += tf.xla_flags()
        if cuda:  # lowerings for a GPU, too
            flags.append("-DCOMPTRAIN_CUDA")
            folder += "_cuda"
    if source.stem == "gpu" and cuda:
        flags += [f"-isystem{cuda.home / 'include'}"]
    return Unit(source, object_file(folder, source), [cxx(), *flags, *extra_flags("CXXFLAGS")])


def together(files: Sequence[Path], file: str) -> Path:
    """A source below build/native that includes others: TensorFlow's headers take longest to read."""
    text = "".join(f'#include "{path.relative_to(ROOT)}"\n' for path in files)
    path = BUILD / file
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def cuda_unit(source: Path, cuda: Cuda) -> Unit:
    """A CUDA kernel with its launcher; no TensorFlow header in it."""
    arch = os.environ.get("TF_COMPTRAIN_CUDA_ARCH", "all-major")
    command = [cuda.nvcc, "-ccbin", cxx(), *NVCC_FLAGS, f"-arch={arch}", f"-I{ROOT}"]
    return Unit(source, object_file("cuda", source), command)


def plain_files(pattern: str) -> list[Path]:
    return sorted(path for folder in PLAIN for path in folder.rglob(pattern))


def codec_sources() -> list[Path]:
    files = [p for p in plain_files("*.cc") if TESTING not in p.parents and not p.stem.endswith("_test")]
    if not IS_X86:
        files = [p for p in files if not p.name.endswith(tuple(ISA_FLAGS))]
    return sorted(files)


def cuda_sources() -> list[Path]:
    return sorted(CODEC.rglob("*.cu"))


def codec_tests(names: Sequence[str]) -> list[Path]:
    """The tests named, or those in the folders named; all without names."""
    tests = plain_files("*_test.cc")
    return [t for t in tests if not names or {t.stem, t.stem[: -len("_test")], t.parent.name} & {*names}]


def cudart_flags(cuda: Cuda) -> list[str]:
    lib = [f"-L{p}" for p in (cuda.home / "lib64", cuda.home / "lib") if p.is_dir()]
    # Its symbols stay inside, where no other CUDA runtime of the process can meet them.
    return [*lib, "-lcudart_static", "-Wl,--exclude-libs,libcudart_static.a", "-ldl", "-lrt", "-lpthread"]


def kernel_sources(tf: TensorFlow, cuda: Cuda | None) -> list[Path]:
    """A source for each folder of C++ that includes TensorFlow, XLA's first; and those for a GPU."""
    xla = ROOT / "cc/kernels/xla"
    others = sorted(p for p in xla.parent.iterdir() if p != xla and any(p.glob("*.cc")))
    folders = [*([xla] if tf.has_xla_headers else []), *others, ROOT / "cc/ops"]
    sources = [
        together(sorted(p for p in folder.glob("*.cc") if p.stem != "gpu"), f"{tf.tag}/{folder.name}.cc")
        for folder in folders
    ]
    return sources + [p for folder in folders for p in folder.glob("gpu.cc") if cuda]


def is_fresh(target: Path, command: list[str], inputs: list[Path]) -> bool:
    """True when target was made by this very command after the last change of its inputs."""
    note = target.with_name(target.name + ".cmd")
    if not target.exists() or not note.exists() or note.read_text() != shlex.join(command):
        return False
    made = target.stat().st_mtime
    return all(p.exists() and p.stat().st_mtime <= made for p in inputs)


def headers_of(object_file: Path) -> list[Path]:
    """The headers that the compiler noted when it made the object (-MMD)."""
    deps = object_file.with_suffix(".d")
    if not deps.exists():
        return [deps]  # never there: not fresh
    words = deps.read_text().replace("\\\n", " ").split()
    return [Path(w) for w in words[1:] if not w.endswith(":")]


def run_command(command: list[str], target: Path, label: str) -> None:
    """Runs a command that writes target, and notes it beside the target."""
    target.parent.mkdir(parents=True, exist_ok=True)
    run = subprocess.run(command, capture_output=True, text=True)
    print(f"  {label}", flush=True)
    if run.stderr.strip():
        print(run.stderr.rstrip(), file=sys.stderr, flush=True)
    if run.returncode != 0:
        raise BuildError(f"{label} failed. The command was: {shlex.join(command)}")
    target.with_name(target.name + ".cmd").write_text(shlex.join(command))


def compile_unit(unit: Unit) -> Path:
    deps = unit.object.with_suffix(".d")
    command = [*unit.command, "-MMD", "-MF", str(deps), "-c", str(unit.source), "-o", str(unit.object)]
    if not is_fresh(unit.object, command, headers_of(unit.object)):
        run_command(command, unit.object, f"compile {unit.source.relative_to(ROOT)}")
    return unit.object


@contextlib.contextmanager
def one_build_at_a_time() -> Iterator[None]:
    """Waits while another process builds in the same folder."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compile_all(units: list[Unit], jobs: int) -> list[Path]:
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(compile_unit, units))


def link(command: list[str], objects: list[Path], flags: list[str], target: Path) -> None:
    """Links into a temporary name first: a loaded library is never overwritten in place."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    full = [*command, *map(str, objects), *flags, *extra_flags("LDFLAGS"), "-o"]
    note = [*full, str(target)]
    if is_fresh(target, note, objects):
        return
    run_command([*full, str(temporary)], temporary, f"link {target.name}")
    temporary.with_name(temporary.name + ".cmd").unlink()
    os.replace(temporary, target)
    target.with_name(target.name + ".cmd").write_text(shlex.join(note))


# --- What is built ----------------------------------------------------------


def library_name(tf: TensorFlow) -> str:
    return f"_comptrain_ops_{tf.tag}.so"


def build_library(tf: TensorFlow, target: Path, jobs: int) -> Path:
    """Compiles and links the op library for one TensorFlow and copies it to target."""
    # A TensorFlow without CUDA never runs the GPU kernels: then they are built on demand only.
    wanted = tf.is_cuda_build or os.environ.get("TF_COMPTRAIN_CUDA", "") != ""
    cuda = find_cuda() if wanted else None
    print(f"TensorFlow {tf.version}, " + (f"CUDA from {cuda.home}" if cuda else "CPU only"), flush=True)
    units = [kernel_unit(p, tf, cuda) for p in kernel_sources(tf, cuda)]
    units += [codec_unit(p) for p in codec_sources()]
    flags = list(tf.link_flags)
    if cuda:
        units += [cuda_unit(p, cuda) for p in cuda_sources()]
        # Before TensorFlow's flags: its framework exports CUDA stubs that would bind first.
        flags = [*cudart_flags(cuda), *flags]
    built = BUILD / (tf.tag + ("_cuda" if cuda else "")) / library_name(tf)
    with one_build_at_a_time():
        link([cxx(), "-shared"], compile_all(units, jobs), flags, built)
        # The time tells the CPU build from the GPU one, so it is copied along and compared.
        expected = (built.stat().st_mtime_ns, built.stat().st_size + SEAL_BYTES)
        if not target.exists() or (target.stat().st_mtime_ns, target.stat().st_size) != expected:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.{os.getpid()}")
            contents = built.read_bytes()
            temporary.write_bytes(contents + seal_of(contents))
            shutil.copystat(built, temporary)
            os.replace(temporary, target)
    return target


SEAL_BYTES = 9 + 8 + 32


def seal_of(contents: bytes) -> bytes:
    """What stands behind the library in its file, where no loader looks: native.py checks it before it loads it."""
    return b"comptrain" + len(contents).to_bytes(8, "little") + hashlib.sha256(contents).digest()


def run_tests(names: list[str], jobs: int, sanitize: bool = False) -> int:
    """Builds and runs the codec's C++ tests: stand-alone programs. Returns how many failed."""
    tests = codec_tests(names)
    emulated = not names or EMULATED_GPU in names
    if not tests and not emulated:
        raise BuildError(f"no test and no folder of tests is named {' or '.join(names)}.")
    folder, flags = ("sanitize", SANITIZE_FLAGS) if sanitize else ("codec", [])
    commands = [[str(program)] for program in build_tests(tests, folder, flags, jobs)]
    if not names and not sanitize:
        build_benchmarks(jobs)  # that nothing else builds
    if emulated:  # first, since it takes longer than most
        commands.insert(0, [str(build_emulated_gpu(folder, flags, jobs)), EMULATED_SHAPES, "0"])
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        failed = len(commands) - sum(pool.map(passes, commands))
    print(f"C++ tests: {len(commands) - failed} programs passed, {failed} failed")
    return failed


def passes(command: list[str]) -> bool:
    """Runs a test program and says how it ended, with all of its output where it failed."""
    program = Path(command[0]).name
    started = time.monotonic()
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    last = (run.stdout.strip().splitlines() or ["no output"])[-1]
    lines = [f"{program}: {last} ({time.monotonic() - started:.1f} s)"]
    if run.returncode != 0:
        lines += [run.stdout, f"{program}: exit status {run.returncode}"]
    print("\n".join(lines), flush=True)
    return run.returncode == 0


def build_tests(tests: list[Path], folder: str, flags: Sequence[str], jobs: int) -> list[Path]:
    """The programs of some tests, in a folder of build/native."""
    programs = [BUILD / folder / test.stem for test in tests]
    with one_build_at_a_time():
        objects = compile_all([codec_unit(p, folder, flags) for p in [*tests, *codec_sources()]], jobs)
        codec = objects[len(tests) :]
        for program, test_object in zip(programs, objects):
            link([cxx(), *flags], [test_object, *codec], ["-lpthread"], program)
    return programs


def build_benchmarks(jobs: int) -> list[Path]:
    """The programs of benchmarks/codec."""
    return build_tests(sorted((ROOT / "benchmarks/codec").glob("*.cc")), "codec", [], jobs)


def build_emulated_gpu(folder: str, flags: Sequence[str], jobs: int) -> Path:
    """The program of `run_gpu` without a GPU."""
    program = BUILD / folder / EMULATED_GPU
    sources = [*(TESTING / EMULATED_GPU).glob("*.cc"), *cuda_sources(), ROOT / GPU_PROGRAM]
    units = [codec_unit(p, f"{folder}/{EMULATED_GPU}_objects", [*flags, *EMULATED_FLAGS]) for p in sources]
    units += [codec_unit(p, folder, flags) for p in codec_sources()]
    with one_build_at_a_time():
        link([cxx(), *flags], compile_all(units, jobs), ["-lpthread"], program)
    return program


def lists_gpu() -> bool:
    """Whether the driver knows a GPU: a program that finds none there has failed."""
    if shutil.which("nvidia-smi") is None:
        return False
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.startswith("GPU")


def run_gpu(arguments: list[str], jobs: int) -> int:
    """Builds and runs the GPU codecs' test and benchmark. Returns its exit status; 0 without nvcc or a GPU."""
    cuda = find_cuda()
    if cuda is None:
        print("GPU codecs: skipped, there is no nvcc (CUDA_HOME, or PATH)")
        return 0
    program = BUILD / "cuda" / "codec_gpu"
    main = codec_unit(ROOT / GPU_PROGRAM, "cuda", [f"-isystem{cuda.home / 'include'}"])
    units = [main, *(cuda_unit(p, cuda) for p in cuda_sources()), *map(codec_unit, codec_sources())]
    with one_build_at_a_time():
        link([cxx()], compile_all(units, jobs), cudart_flags(cuda), program)
    status = subprocess.run([str(program), *arguments]).returncode
    if status == NO_GPU and not lists_gpu():
        return 0  # it says itself that there is none
    return status


def run_fuzzers(names: list[str], jobs: int, runs: int) -> int:
    """Builds and runs the libFuzzer targets from the seeds of fuzz_smoke_test. Returns how many found something."""
    targets = sorted((TESTING / "fuzz").glob("*_fuzz.cc"))
    targets = [t for t in targets if not names or t.stem[: -len("_fuzz")] in names]
    if not targets:
        raise BuildError(f"no target in cc/codec/testing/fuzz is named {' or '.join(names)}.")
    clang = next(filter(shutil.which, ["clang++", *(f"clang++-{v}" for v in range(25, 10, -1))]), None)
    if clang is None:
        raise BuildError(
            "libFuzzer comes with clang, and there is no clang++ in PATH. Install clang and libclang-rt."
        )
    (seeder,) = build_tests([TESTING / "fuzz_smoke_test.cc"], "codec", [], jobs)
    instrumented = [*SANITIZE_FLAGS, "-fsanitize=fuzzer-no-link"]
    with one_build_at_a_time():
        units = [codec_unit(p, "fuzz", instrumented, clang) for p in [*targets, *codec_sources()]]
        objects = compile_all(units, jobs)
        programs = [BUILD / "fuzz" / target.stem for target in targets]
        for program, object_file in zip(programs, objects):
            flags = ["-fsanitize=fuzzer,address,undefined", "-lpthread"]
            link([clang], [object_file, *objects[len(targets) :]], flags, program)
    failed = 0
    for program in programs:
        corpus, seeds = (BUILD / "fuzz" / f"{program.name}_{kind}" for kind in ("corpus", "seeds"))
        corpus.mkdir(exist_ok=True)
        seeds.mkdir(exist_ok=True)
        subprocess.run([str(seeder), str(seeds)], check=True, stdout=subprocess.DEVNULL)
        command = [
            str(program),
            f"-runs={runs}",
            "-max_len=16384",
            f"-artifact_prefix={program}_",
            "-verbosity=0",
        ]
        started = time.monotonic()
        status = subprocess.run([*command, "-print_final_stats=1", str(corpus), str(seeds)]).returncode
        print(
            f"{program.name}: {'failed' if status else 'passed'} ({time.monotonic() - started:.0f} s)",
            flush=True,
        )
        failed += status != 0
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("ops", "test", "bench", "gpu", "fuzz"))
    parser.add_argument(
        "names", nargs="*", help="tests or fuzz targets to run (all by default); arguments of gpu"
    )
    parser.add_argument(
        "--sanitize", action="store_true", help="tests with AddressSanitizer and UndefinedBehaviorSanitizer"
    )
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs a fuzz target is given")
    parser.add_argument("--jobs", type=int, default=cores())
    args = parser.parse_intermixed_args()
    try:
        if args.what == "test":
            return 1 if run_tests(args.names, args.jobs, args.sanitize) else 0
        if args.what == "bench":
            print(*(program.relative_to(ROOT) for program in build_benchmarks(args.jobs)), sep="\n")
            return 0
        if args.what == "gpu":
            return run_gpu(args.names, args.jobs)
        if args.what == "fuzz":
            return 1 if run_fuzzers(args.names, args.jobs, args.runs) else 0
        tf = find_tensorflow()
        print(build_library(tf, ROOT / "tf_comptrain" / library_name(tf), args.jobs).relative_to(ROOT))
        return 0
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
