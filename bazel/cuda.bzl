"""@local_cuda: the CUDA toolkit of CUDA_HOME or of the nvcc on PATH; empty where there is none."""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_import", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    includes = ["include"],
)

# A dependency on this one comes before TensorFlow, whose framework exports CUDA stubs
# that would bind first.
cc_import(
    name = "cudart_static",
    static_library = "libcudart_static.a",
)

cc_library(
    name = "runtime",
    linkopts = ["-Wl,--exclude-libs,libcudart_static.a", "-ldl", "-lrt", "-lpthread"],
    deps = [":cudart_static", ":headers"],
)
"""

_EMPTY = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

[cc_library(name = n) for n in ("headers", "runtime")]
"""

def _find(ctx):
    """(nvcc, toolkit folder), or None."""
    home = ctx.os.environ.get("CUDA_HOME")
    nvcc = ctx.path(home + "/bin/nvcc") if home else ctx.which("nvcc")
    if not nvcc or not nvcc.exists:
        return None

    # nvcc may be a wrapper elsewhere; it knows its own toolkit.
    told = ctx.execute([nvcc, "--dryrun", "-x", "cu", "/dev/null"])
    for line in told.stderr.split("\n"):
        if line.startswith("#$ TOP="):
            return nvcc, ctx.path(line[len("#$ TOP="):].strip())
    return nvcc, ctx.path(home) if home else nvcc.realpath.dirname.dirname

def _cuda_impl(ctx):
    found = None if ctx.os.environ.get("TF_COMPTRAIN_CUDA") == "0" else _find(ctx)
    if not found:
        if ctx.os.environ.get("TF_COMPTRAIN_CUDA") == "1":
            fail("--config=cuda asks for GPU kernels, but no nvcc was found: set CUDA_HOME to a CUDA toolkit.")
        ctx.file("BUILD", _EMPTY)
        ctx.file("nvcc.bzl", 'NVCC = ""\n')
        return
    nvcc, home = found
    for lib in ("lib64", "lib", "targets/x86_64-linux/lib"):
        cudart = ctx.path("%s/%s/libcudart_static.a" % (home, lib))
        if cudart.exists:
            ctx.symlink(cudart, "libcudart_static.a")
            break
    ctx.symlink(home.get_child("include"), "include")
    ctx.file("BUILD", _BUILD)
    ctx.file("nvcc.bzl", 'NVCC = "%s"\n' % nvcc)

cuda_repository = repository_rule(
    implementation = _cuda_impl,
    environ = ["CUDA_HOME", "PATH", "TF_COMPTRAIN_CUDA"],
    local = True,
    doc = "Finds a CUDA toolkit; only --config=cuda needs one.",
)
