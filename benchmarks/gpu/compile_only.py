"""What XLA's GPU compiler makes of plain and compressed training steps, without a GPU.

    python -m venv jax && jax/bin/pip install "jax[cuda12]"     # 5 GB; has XLA's GPU compiler
    python benchmarks/gpu/compile_only.py --jax jax/bin/python [--out results/compile_only]

TensorFlow traces each step and lowers it to HLO, as for a GPU; the compiler, given the description of an H200,
turns that into its kernels and a plan of their memory. The table has what it says:

| column  | meaning                                                                                         |
|---------|-------------------------------------------------------------------------------------------------|
| peak    | the step's temporary memory, and a workspace: convolutions take theirs on a GPU only, and those |
|         | of float32 turn a tensor round inside of cuDNN, so the largest one is counted again             |
| kernels | other than convolutions and matrix products                                                     |
| moved   | bytes that those read and write                                                                 |
| time    | an estimate for those, at least 1.5 us a kernel: bytes at 4.1 TB/s, at 2.75 TB/s where a kernel |
|         | packs, unpacks or reduces, since such kernels are short of instructions before memory           |
| compiled| seconds that the compiler took, dumps included, without choosing kernels by trying them         |

A prediction, not a measurement: whether the kernels run at the speed of memory, only a GPU can tell. The
convolutions are the same in both steps. Each step leaves a JSON file in the folder and is not repeated.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import functools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BYTES_A_SECOND = 4.1e12  # of the 4.8e12 that an H200's memory has
PACKED_BYTES_A_SECOND = 2.75e12
PACKING = {"reduce", "shift-left", "shift-right-logical"}
KERNEL_S = 1.5e-6
LIBRARY_CALLS = ("cudnn", "cublas")
ITEM_BYTES = {
    "pred": 1, "s8": 1, "u8": 1, "s16": 2, "u16": 2, "f16": 2, "bf16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8,
}  # fmt: skip
ELEMENTWISE = {
    "abs", "add", "and", "bitcast", "clamp", "compare", "convert", "divide", "exponential", "floor", "is-finite",
    "maximum", "minimum", "multiply", "negate", "not", "or", "reshape", "round-nearest-even", "rsqrt", "select",
    "shift-left", "shift-right-logical", "sqrt", "subtract",
}  # fmt: skip
NOT_A_KERNEL = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "opt-barrier"}
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
  shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 4814000000000 l2_cache_size: 62914560 clock_rate_ghz: 1.98
  device_memory_size: 150000000000 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H200"
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jax", default=sys.executable, help="the Python that has jax[cuda12]")
    parser.add_argument("--out", type=Path, default=Path("results/compile_only"))
    parser.add_argument(
        "--models",
        nargs="*",
        default=["ResNet50", "ResNet152", "Gemma"],
        help="of keras.applications, or of keras-hub's language models: 12 blocks of width 768, 512 tokens",
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--storage", help="of compress_model, where not the default")
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)  # a worker's own call
    args = parser.parse_args()
    if args.work is not None:
        work = dict(args.work)
        WORKERS[work.pop("what")](**work)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    print(
        "| model | batch | dtype | | peak MB | plain / peak | kernels | moved GB | time ms | compiled in s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for model in args.models:
        for dtype in args.dtypes:
            plain = None
            for compress in (False, True):
                row = measured(args, model, dtype, compress)
                plain = plain or row
                ratio = f"{plain['peak'] / row['peak']:.2f}" if compress else ""
                print(
                    f"| {model} | {args.batch} | {dtype} | {'compressed' if compress else 'plain'} "
                    f"| {row['peak'] / 1e6:,.0f} | {ratio} | {row['kernels']:,} "
                    f"| {row['moved'] / 1e9:.1f} | {row['seconds'] * 1e3:.2f} | {row['compile_s']:.0f} |",
                    flush=True,
                )
    return 0


def measured(args: argparse.Namespace, model: str, dtype: str, compress: bool) -> dict:
    name = f"{model}-{args.batch}-{dtype}-{(args.storage or 'compressed') if compress else 'plain'}"
    result = args.out / f"{name}.json"
    if not result.exists():
        hlo = args.out / f"{name}.hlo"
        work = {"model": model, "batch": args.batch, "dtype": dtype, "compress": compress, "out": str(hlo)}
        work["storage"] = args.storage
        worker(sys.executable, {"what": "lower", **work}, TF_COMPTRAIN_XLA_TARGET="GPU")
        worker(args.jax, {"what": "compile", "hlo": str(hlo), "out": str(result)})
        hlo.unlink()
    return json.loads(result.read_text())


def worker(python: str, work: dict, **environment: str) -> None:
    command = [python, str(Path(__file__).resolve()), "--work", json.dumps(work)]
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": python_path}
    done = subprocess.run(command, env={**os.environ, **quiet, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{work['what']} failed with {python}:\n{done.stderr[-3000:]}")


def lower(
    model: str, batch: int, dtype: str, compress: bool, out: str, storage: str | None = None, image: int = 224
) -> None:
    """A worker, with TensorFlow: writes the HLO of one training step."""
    import tensorflow as tf
    from tensorflow import keras

    import tf_comptrain as ct

    sys.path.append(str(ROOT / "benchmarks" / "models"))
    from hub_models import LANGUAGE_MODELS, Sizes, language_model

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(dtype)
    if model in LANGUAGE_MODELS:
        sizes = Sizes(batch, tokens=512, vocabulary=2_000, width=768, blocks=12)
        network, x, y = language_model(model, sizes, batches=1)
        shapes = tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), (x, y))
    else:
        network = getattr(keras.applications, model)(weights=None, input_shape=(image, image, 3))
        shapes = tf.TensorSpec((batch, image, image, 3)), tf.TensorSpec((batch,), tf.int64)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=model in LANGUAGE_MODELS)
    network.compile(optimizer, loss, jit_compile=True)
    if compress:
        ct.compress_model(network, **({"storage": storage} if storage else {}))
    optimizer.build(network.trainable_variables)
    step = tf.function(
        lambda *parts: network.train_step(tf.nest.pack_sequence_as(shapes, parts)), jit_compile=True
    )
    program = step.experimental_get_compiler_ir(*tf.nest.flatten(shapes))
    Path(out).write_bytes(program(stage="hlo_serialized"))


def compile_(hlo: str, out: str) -> None:
    """A worker, with JAX: compiles for an H200 and writes what the compiler says."""
    dump = Path(out).with_suffix(".dump")
    # No autotuning: it runs kernels.
    flags = f"--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false --xla_dump_to={dump}"
    os.environ["XLA_FLAGS"] = f"{flags} --xla_dump_hlo_as_text"
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # it asks the driver
    import numpy as np
    from jax import ffi
    from jax._src import xla_bridge
    from jax._src.interpreters import mlir
    from jax.experimental import topologies
    from jaxlib import _hlo, _jax, xla_client
    from jaxlib.mlir import ir

    for name, handler in stand_ins(ffi.include_dir(), dump.parent).items():
        ffi.register_ffi_target(name, ffi.pycapsule(handler), platform="CUDA")
    xla_bridge.canonicalize_platform = lambda platform: "cuda"  # it looks for a device
    topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1")
    options = _hlo.HloPrintOptions()
    options.print_large_constants = True
    module = _hlo.HloModule.from_serialized_hlo_module_proto(Path(hlo).read_bytes())
    # StableHLO has no copies; those of TensorFlow stand before results only.
    text = re.sub(r"\bcopy\(", "reshape(", module.to_string(options))
    program = _jax.mlir.hlo_to_stablehlo(_hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto())
    settings = xla_client.CompileOptions()
    settings.device_assignment = xla_client.DeviceAssignment.create(np.array([[0]]))
    began = time.perf_counter()
    with mlir.make_ir_context():
        client = topology.devices[0].client
        client.compile(ir.Module.parse(program), _jax.DeviceList(tuple(topology.devices)), settings)
    compile_s = time.perf_counter() - began
    optimized = next(dump.glob("*gpu_after_optimizations.txt")).read_text()
    kernels = list(kernels_of(optimized))
    plan = next(dump.glob("*gpu_after_optimizations-buffer-assignment.txt")).read_text()
    result = {
        "peak": max(int(n) for n in re.findall(r"allocation \d+: size (\d+), preallocated-temp", plan))
        + workspace_of(optimized),
        "kernels": len(kernels),
        "moved": sum(k.bytes for k in kernels),
        "compile_s": compile_s,
        "seconds": sum(kernel.seconds for kernel in kernels),
    }
    Path(out).write_text(json.dumps(result))
    for path in dump.iterdir():
        path.unlink()
    dump.rmdir()


# Of cc/kernels/xla/calls.h.
CALLS = (
    *(f"fixed_rate_{call}" for call in ("encode", "decode", "mask_gradient", "batch_norm_gradient")),
    "max_pool",
    "max_pool_gradient",
)


def stand_ins(include: str, folder: Path) -> dict:
    """For the calls of this library, which the compiler looks for and does not make: functions that do nothing."""
    source, library = folder / "stand_in.cc", folder / "stand_in.so"
    source.write_text(
        """#include "xla/ffi/api/ffi.h"
        namespace ffi = xla::ffi;
        XLA_FFI_DEFINE_HANDLER_SYMBOL(
            StandIn,
            [](ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) { return ffi::Error::Success(); },
            ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs(), {ffi::Traits::kCmdBufferCompatible});
        """
    )
    compiler = os.environ.get("CXX", "g++")
    subprocess.run(
        [compiler, "-std=c++17", "-shared", "-fPIC", f"-I{include}", str(source), "-o", str(library)],
        check=True,
    )
    handler = ctypes.CDLL(str(library)).StandIn
    return {f"comptrain_{call}": handler for call in CALLS}


WORKERS = {"lower": lower, "compile": compile_}


class Instruction(NamedTuple):
    name: str
    bytes: int  # of its result
    operation: str
    rest: str  # operands and attributes
    is_float32: bool  # whether some of its result is

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.rest.split("), ")[0])


class Kernel(NamedTuple):
    name: str
    bytes: int  # read and written
    packs: bool  # packs, unpacks or reduces

    @property
    def seconds(self) -> float:
        return max(self.bytes / (PACKED_BYTES_A_SECOND if self.packs else BYTES_A_SECOND), KERNEL_S)


def computations_of(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """The computations of an HLO module by name, and which of them is the entry."""
    computations: dict[str, list[Instruction]] = collections.defaultdict(list)
    current = entry = ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            current = head[2]
            entry = current if head[1] else entry
        elif found := re.match(r"\s+(?:ROOT )?%([\w.\-]+) = (\([^=]*?\)|\S+) ([\w\-]+)\((.*)$", line):
            computations[current].append(
                Instruction(found[1], size(found[2]), found[3], found[4], "f32[" in found[2])
            )
    return computations, entry


def workspace_of(text: str) -> int:
    """What cuDNN's convolutions of float32 are taken to need besides their results."""
    computations, entry = computations_of(text)
    shapes = {one.name: one for one in computations[entry]}
    convolutions = [one for one in computations[entry] if "cudnn$conv" in one.rest and one.is_float32]
    return max(
        (
            max([one.bytes, *(shapes[name].bytes for name in one.operands if name in shapes)])
            for one in convolutions
        ),
        default=0,
    )


def kernels_of(text: str):
    """The kernels of an optimized HLO module, but for the calls of libraries."""
    computations, entry = computations_of(text)
    sizes = {instruction.name: instruction.bytes for instruction in computations[entry]}
    for one in computations[entry]:
        library = one.operation == "custom-call" and any(name in one.rest for name in LIBRARY_CALLS)
        if one.operation in NOT_A_KERNEL or library:
            continue
        operands = [name for name in one.operands if name in sizes]
        read = {name: sizes[name] for name in operands}
        packs = one.operation in PACKING
        if called := re.search(r"calls=%?([\w.\-]+)", one.rest):
            touched = parameter_bytes(computations[called[1]])
            packs = any(inner.operation in PACKING for inner in computations[called[1]])
            read = {name: min(sizes[name], touched.get(i, sizes[name])) for i, name in enumerate(operands)}
        yield Kernel(one.name, one.bytes + sum(read.values()), packs)


def size(shape: str) -> int:
    total = 0
    for dtype, dims in re.findall(r"([a-z]+\d*)\[([\d,]*)\]", shape):
        count = 1
        for dim in filter(None, dims.split(",")):
            count *= int(dim)
        total += count * ITEM_BYTES.get(dtype, 0)
    return total


def parameter_bytes(body: list[Instruction]) -> dict[int, int]:
    """Bytes that a fusion reads of each parameter: of one that only slices read, what they take."""
    users = collections.defaultdict(list)
    for one in body:
        for name in set(one.operands):
            users[name].append(one)

    @functools.cache
    def share(name: str) -> float:
        """Of the elements: a fusion computes those that its slices take, and no others."""
        taken = 0.0
        for user in users[name]:
            if user.operation in ("slice", "dynamic-slice"):
                taken += user.bytes / sizes[name]
            elif user.operation in ELEMENTWISE:
                taken += share(user.name)
            else:
                return 1.0
        return min(taken, 1.0) if users[name] else 1.0

    sizes = {one.name: max(one.bytes, 1) for one in body}
    parameters = [one for one in body if one.operation == "parameter"]
    return {int(one.rest.split(")")[0]): round(share(one.name) * one.bytes) for one in parameters}


if __name__ == "__main__":
    sys.exit(main())
