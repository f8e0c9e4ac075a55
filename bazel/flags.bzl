"""Compiler flags of each part for Bazel: a copy; tools/build_native.py has every flag."""

# No contraction: streams are byte-identical on every instruction set.
CODEC_COPTS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-Wall", "-Wextra"]

KERNEL_COPTS = ["-std=c++17", "-O2", "-Wall"]

# Instruction sets are chosen at run time, so they belong to single files.
AVX2_COPTS = select({
    "@platforms//cpu:x86_64": ["-mavx2", "-mfma", "-mbmi", "-mbmi2", "-mf16c"],
    "//conditions:default": [],
})

AVX512_COPTS = select({
    "@platforms//cpu:x86_64": [
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
    "//conditions:default": [],
})

NVCC_FLAGS = "-std=c++17 -O3 -fmad=false -Xcompiler -fPIC,-ffp-contract=off -arch=all-major"
