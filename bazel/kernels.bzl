"""The C++ of one folder that includes TensorFlow, as a library."""

load("@rules_cc//cc:defs.bzl", "cc_library")
load("//bazel:flags.bzl", "KERNEL_COPTS")

def kernel_folder(name, deps, copts = [], enabled = True):
    """The folder `name`; deps: libraries of cc/codec before TensorFlow's, see @local_cuda."""
    sources = native.glob(["*.cc"], exclude = ["gpu.cc"]) if enabled else []
    if sources:
        # As one: TensorFlow's headers take longest to read.
        native.genrule(
            name = name + "_together",
            outs = [name + "_together.cc"],
            cmd = "(%s) > $@" % "; ".join([
                "echo '#include \"%s/%s\"'" % (native.package_name(), source)
                for source in sources
            ]),
        )
    cc_library(
        name = name,
        srcs = ([name + "_together.cc"] if sources else []) + (select({
            "//bazel:cuda": native.glob(["gpu.cc"]),
            "//conditions:default": [],
        }) if enabled else []),
        hdrs = native.glob(["*.h"]),
        textual_hdrs = sources,
        copts = KERNEL_COPTS + copts,
        linkstatic = True,
        alwayslink = True,
        deps = deps + ["@local_tensorflow//:headers"],
    )
