"""Stand-ins for repositories that Bazel 4 would download: they only forward to its native rules."""


_FILES = {
    "rules_cc": {
        "cc/BUILD": "",
        "cc/defs.bzl": """
cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
""",
    },
    "rules_java": {
        "java/BUILD": "",
        "java/defs.bzl": """
java_binary = native.java_binary
java_import = native.java_import
java_library = native.java_library
java_runtime = native.java_runtime
java_test = native.java_test
java_toolchain = native.java_toolchain
java_package_configuration = native.java_package_configuration
""",
    },
    # bazel test asks for these even when no coverage is collected.
    "remote_coverage_tools": {
        "BUILD": """
package(default_visibility = ["//visibility:public"])
[filegroup(name = n) for n in ("coverage_report_generator", "lcov_merger")]
""",
    },
}

def _stub_impl(ctx):
    ctx.file("WORKSPACE", "")
    for path, content in ctx.attr.files.items():
        ctx.file(path, content)

_stub = repository_rule(
    implementation = _stub_impl,
    attrs = {"files": attr.string_dict(mandatory = True)},
)

def stub_repositories(existing):
    """Declares the stand-ins that are not in existing, the repositories declared so far."""
    for name, files in _FILES.items():
        if name not in existing:
            _stub(name = name, files = files)
