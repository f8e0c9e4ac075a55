"""benchmarks/gpu/compile_only.py: what it reads from a compiled program."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"))
import compile_only  # noqa: E402

PROGRAM = """
%pack (p: f32[8,1024]) -> u32[8,32] {
  %p = f32[8,1024]{1,0} parameter(0)
  %codes = u32[8,1024]{1,0} convert(%p)
  %shifted = u32[8,1024]{1,0} shift-left(%codes, %by)
  ROOT %words = u32[8,32]{1,0} reduce(%shifted, %zero), dimensions={1}, to_apply=%or
}

%scale (q: f32[8,1024]) -> f32[8,1024] {
  %q = f32[8,1024]{1,0} parameter(0)
  ROOT %twice = f32[8,1024]{1,0} multiply(%q, %q)
}

ENTRY %main (x: f32[8,1024]) -> u32[8,32] {
  %x = f32[8,1024]{1,0} parameter(0)
  %filter = f32[3,3]{1,0} constant({...})
  %conv = (f32[4,1024]{1,0}, u8[0]{0}) custom-call(%x, %filter), custom_call_target="__cudnn$convForward"
  %half = (bf16[64,1024]{1,0}, u8[0]{0}) custom-call(%x, %filter), custom_call_target="__cudnn$convForward"
  %scaled = f32[8,1024]{1,0} fusion(%x), kind=kLoop, calls=%scale
  ROOT %packed = u32[8,32]{1,0} fusion(%scaled), kind=kInput, calls=%pack
}
"""


def test_kernels_that_pack_run_at_a_lower_rate():
    scaled, packed = compile_only.kernels_of(PROGRAM)
    assert (scaled.name, scaled.bytes, scaled.packs) == ("scaled", 2 * 8 * 1024 * 4, False)
    assert (packed.name, packed.bytes, packed.packs) == ("packed", 8 * 1024 * 4 + 8 * 32 * 4, True)
    assert scaled.seconds == packed.seconds == compile_only.KERNEL_S
    large = [kernel._replace(bytes=10**10).seconds for kernel in (scaled, packed)]
    assert large == pytest.approx([10 / 4100, 10 / 2750])


def test_what_a_slice_leaves_out_is_not_read():
    last = "ROOT %last = f32[1,1024]{1,0} slice(%twice), slice={[7:8], [0:1024]}"
    program = PROGRAM.replace("ROOT %twice = f32", "%twice = f32").replace("(%q, %q)", f"(%q, %q)\n  {last}")
    program = program.replace("%scaled = f32[8,1024]", "%scaled = f32[1,1024]")
    scaled, _ = compile_only.kernels_of(program)
    assert scaled.bytes == 2 * 1024 * 4
    whole, _ = compile_only.kernels_of(program.replace("multiply(%q, %q)", "reverse(%q)"))
    assert whole.bytes == (8 + 1) * 1024 * 4  # of what is not elementwise nobody knows


def test_the_largest_tensor_of_a_float32_convolution_is_counted_again():
    assert compile_only.workspace_of(PROGRAM) == 8 * 1024 * 4  # not the one in bfloat16
    assert compile_only.workspace_of(PROGRAM.replace("f32[4,1024]", "f32[99,1024]")) == 99 * 1024 * 4
    assert compile_only.workspace_of(PROGRAM.replace("cudnn", "cublas")) == 0
