"""One folder of cc/kernels as a library."""

load("@rules_cc//cc:defs.bzl", "cc_library")
load("//bazel:flags.bzl", "KERNEL_COPTS")

def kernel_folder(name, deps, copts = [], enabled = True):
    """The folder `name`; deps: libraries of cc/codec before TensorFlow's, see @local_cuda."""
    cc_library(
        name = name,
        srcs = native.glob(["*.cc"], exclude = ["gpu.cc"]) + select({
            "//bazel:cuda": native.glob(["gpu.cc"]),
            "//conditions:default": [],
        }) if enabled else [],
        hdrs = native.glob(["*.h"]),
        copts = KERNEL_COPTS + copts,
        linkstatic = True,
        alwayslink = True,
        deps = deps + ["@local_tensorflow//:headers"],
    )
