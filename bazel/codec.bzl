"""One folder of cc/codec as libraries and tests."""

load("@local_cuda//:nvcc.bzl", "NVCC")
load("@rules_cc//cc:defs.bzl", "cc_library", "cc_test")
load("//bazel:flags.bzl", "AVX2_COPTS", "AVX512_COPTS", "CODEC_COPTS", "NVCC_FLAGS")

_AVX2 = ["*avx2.cc"]
_AVX512 = ["*avx512.cc"]

def codec_folder(name, deps = []):
    """The folder `name`, which may use the folders `deps`.

    Its parts call each other, so each is linked as a whole (alwayslink).
    """
    headers = native.glob(["*.h"])
    cuda_sources = native.glob(["*.cu"])
    cc_library(
        name = "headers",
        hdrs = headers,
        deps = ["//cc/codec/%s:headers" % d for d in deps],
    )
    for part, sources, copts in (("avx2", _AVX2, AVX2_COPTS), ("avx512", _AVX512, AVX512_COPTS)):
        cc_library(
            name = part,
            srcs = select({
                "@platforms//cpu:x86_64": native.glob(sources, allow_empty = True),
                "//conditions:default": [],
            }),
            copts = CODEC_COPTS + copts,
            linkstatic = True,
            visibility = ["//visibility:private"],
            alwayslink = True,
            deps = [":headers"],
        )
    cc_library(
        name = name,
        srcs = native.glob(["*.cc"], exclude = ["*_test.cc"] + _AVX2 + _AVX512),
        copts = CODEC_COPTS,
        linkstatic = True,
        alwayslink = True,
        deps = [":headers", ":avx2", ":avx512"] + ["//cc/codec/" + d for d in deps] + select({
            "//bazel:cuda": [":cuda"],
            "//conditions:default": [],
        }),
    )

    # nvcc makes the objects; only --config=cuda builds this part. It reads all headers of its folder and of deps.
    native.filegroup(
        name = "header_files",
        srcs = headers + ["//cc/codec/%s:header_files" % d for d in deps],
    )
    for source in cuda_sources:
        native.genrule(
            name = source.replace(".", "_"),
            srcs = [source],
            outs = [source + ".o"],
            cmd = "%s %s -I$$(dirname $(location %s))/../../.. -c $(location %s) -o $@" % (NVCC, NVCC_FLAGS, source, source),
            tags = ["manual"],
            tools = [":header_files"],
        )
    cc_library(
        name = "cuda",
        srcs = [source + ".o" for source in cuda_sources],
        linkstatic = True,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        alwayslink = True,
        deps = ["@local_cuda//:runtime"],
    )
    for source in native.glob(["*_test.cc"]):
        cc_test(
            name = source[:-len(".cc")],
            timeout = "moderate",
            srcs = [source],
            copts = CODEC_COPTS,
            linkopts = ["-lpthread"],
            linkstatic = True,
            deps = ["//cc/codec", "//cc/codec/testing"],
        )
