"""What XLA makes of a compressed step, read from the program and the plan of its memory that it writes down."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).resolve().parents[1]
SHAPE = (16, 32, 32, 32)  # of what each layer holds
SIZE = math.prod(SHAPE)
STEP = """
import os
import numpy as np, tensorflow as tf
from tensorflow import keras
from models import chain
import tf_comptrain as ct
model = chain(4)
model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=True)
if os.environ["STORAGE"] == "compress":
    ct.compress_model(model)
model.train_on_batch(np.ones((16, 32, 32, 32), "float32"), np.zeros((16, 32), "float32"))
"""


class Instruction(NamedTuple):
    shape: str
    operation: str
    operands: tuple[str, ...]

    @property
    def size(self) -> int:
        """Elements of a float result; 0 of others."""
        found = re.match(r"f32\[([\d,]+)\]", self.shape)
        return 0 if found is None else math.prod(map(int, found[1].split(",")))


def entry_of(text: str) -> dict[str, Instruction]:
    """The instructions of a program's entry, by name."""
    lines = text[text.index("\nENTRY") :].splitlines()
    found = (re.match(r"\s+(?:ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$", line) for line in lines)
    return {
        m[1]: Instruction(m[2], m[3], tuple(re.findall(r"%([\w.\-]+)", m[4].split("), ")[0])))
        for m in found
        if m
    }


def decoders(program: dict[str, Instruction]) -> dict[str, list[str]]:
    """For each stream the instructions that make a tensor of its size from its scales."""
    scales: dict[str, str] = {}
    for name, one in program.items():  # in the order in which they are made
        if one.shape.startswith("u8") and one.operation in ("add-dependency", "bitcast"):
            made, *token = one.operands
            if made in scales:
                scales[name] = scales[made]
            elif token and "Compress" in token[0]:
                scales[name] = token[0]
    found: dict[str, list[str]] = {stream: [] for stream in scales.values()}
    for name, one in program.items():
        for operand in set(one.operands) & set(scales):
            if one.size == SIZE:
                found[scales[operand]].append(name)
    return found


def copies(program: dict[str, Instruction], of: set[str]) -> list[str]:
    """Instructions that make a tensor of the same size of one of these alone: copied, turned or cast."""
    return [
        name
        for name, one in program.items()
        if one.size == SIZE and one.operands and of.issuperset(one.operands)
    ]


def largest_program(folder: Path, storage: str) -> Path:
    """The program of the step, with all that XLA writes down of it in a folder."""
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    environment = {
        **os.environ,
        "XLA_FLAGS": flags,
        "PYTHONPATH": path,
        "CUDA_VISIBLE_DEVICES": "-1",
        "STORAGE": storage,
    }
    subprocess.run([sys.executable, "-c", STEP], env=environment, check=True, capture_output=True)
    return max(folder.glob("*after_optimizations.txt"), key=lambda path: path.stat().st_size)


@pytest.mark.long
def test_a_stream_is_decoded_once(tmp_path):
    largest = largest_program(tmp_path / "compressed", "compress")
    program = entry_of(largest.read_text())
    decoded = decoders(program)
    assert len(decoded) == 3  # the first layer reads the images
    # The gradient of the ReLU reads the codes for their zeros, and writes in the place of dy.
    masked = {name for names in decoded.values() for name in names if "StreamMaskGrad" in name}
    decoded = {stream: sorted(set(names) - masked) for stream, names in decoded.items()}
    assert all(len(names) == 1 for names in decoded.values()), decoded
    results = {name for names in decoded.values() for name in names}
    # Turned once, for the gradient of the convolution's weights, as XLA's CPU compiler turns the input of a plain one.
    turned = copies(program, results)
    assert len(turned) == len(results) and all(name.startswith("transpose") for name in turned)
    plain = entry_of(largest_program(tmp_path / "plain", "keep").read_text())
    assert len(turned) <= sum(
        one.size == SIZE and name.startswith("transpose") for name, one in plain.items()
    )

    # No two decoded tensors at the same place in time: all of them share one place of the plan.
    plan = largest.with_name(largest.name.replace(".txt", "-buffer-assignment.txt")).read_text()
    places = re.findall(r"value: <\d+ (\S+) @0> \(size=(\d+),offset=(\d+)\): f32", plan)
    offsets = {name: int(offset) for name, size, offset in places if int(size) == 4 * SIZE}
    assert results <= set(offsets)
    assert len({offsets[name] for name in results}) == 1


def test_what_the_test_looks_for_is_found():
    shape = ",".join(map(str, SHAPE))
    program = entry_of(f"""
ENTRY %main () -> f32[1] {{
  %Compress.1 = token[] custom-call(%x), custom_call_target="fence"
  %packed = u8[4]{{0}} add-dependency(%made, %Compress.1)
  %Decompress.1 = token[] custom-call(%dy), custom_call_target="fence"
  %scales = u8[4]{{0}} add-dependency(%packed, %Decompress.1)
  %once = f32[{shape}]{{3,2,1,0}} fusion(%scales, %step), kind=kLoop
  %twice = f32[{shape}]{{3,2,1,0}} fusion(%scales, %step), kind=kLoop
  %turned = f32[32,32,32,16]{{3,2,1,0}} transpose(%once), dimensions={{1,2,3,0}}
}}
""")
    assert decoders(program) == {"Compress.1": ["once", "twice"]}
    assert copies(program, {"once", "twice"}) == ["turned"]
