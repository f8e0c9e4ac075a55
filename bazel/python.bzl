"""One folder of tf_comptrain as a library."""

def python_folder(name, deps = []):
    """The modules of a folder.

    Args:
      name: Of the folder.
      deps: The folders that its modules import: tests/test_imports.py compares.
    """
    native.py_library(
        name = name,
        srcs = native.glob(["**/*.py"]),
        imports = ["../.."],
        srcs_version = "PY3",
        visibility = ["//tf_comptrain:__subpackages__"],
        deps = deps,
    )
