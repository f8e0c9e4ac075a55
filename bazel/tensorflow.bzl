"""@local_tensorflow: headers and framework library of the TensorFlow that Python has installed."""

_ASK = """
import json, tensorflow as tf
print(json.dumps([tf.__version__, tf.sysconfig.get_compile_flags(),
                  tf.sysconfig.get_include(), tf.sysconfig.get_lib()]))
"""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    defines = {defines},
    includes = ["include"],  # system headers: their warnings are not ours
)

cc_library(
    name = "xla_headers",
    includes = {xla_includes},
    deps = [":headers"],
)

cc_library(
    name = "framework",
    srcs = ["libtensorflow_framework.so.2"],
    deps = [":headers"],
)
"""

def python_binary(ctx):
    """The Python of PYTHON_BIN_PATH, or python3 on PATH."""
    python = ctx.os.environ.get("PYTHON_BIN_PATH") or ctx.which("python3")
    if not python:
        fail("No Python: set PYTHON_BIN_PATH, or put python3 on PATH.")
    return python

def _tensorflow_impl(ctx):
    python = python_binary(ctx)
    answer = ctx.execute(
        [python, "-c", _ASK],
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
    )
    if answer.return_code != 0:
        fail(("The ops are compiled against the TensorFlow of %s, which cannot import it. " +
              "Install TensorFlow there, or name another Python with PYTHON_BIN_PATH.\n%s") % (python, answer.stderr))
    version, flags, include, lib = json.decode(answer.stdout.strip().split("\n")[-1])
    ctx.symlink(include, "include")
    ctx.symlink(lib + "/libtensorflow_framework.so.2", "libtensorflow_framework.so.2")
    external = ctx.path("include/external")
    libraries = [d.basename for d in external.readdir()] if external.exists else []
    ctx.file("BUILD", _BUILD.format(
        defines = repr([f[2:] for f in flags if f.startswith("-D")]),
        xla_includes = repr(["include/external/" + d for d in libraries + ["farmhash_archive/src"]]),
    ))
    ctx.file("version.bzl", 'TENSORFLOW_TAG = "tf%s"\nHAS_XLA_HEADERS = %s\n' % (
        "_".join(version.split(".")[:2]),
        ctx.path("include/xla/hlo/builder/xla_builder.h").exists,
    ))

tensorflow_repository = repository_rule(
    implementation = _tensorflow_impl,
    environ = ["PATH", "PYTHON_BIN_PATH"],
    local = True,
    doc = "Asks Python where TensorFlow is; links to it, copies nothing.",
)
