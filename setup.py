"""Builds the op library for the installed TensorFlow; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
import build_native  # noqa: E402


class BuildOps(build_ext):
    """Compiles with tools/build_native.py; the library is no Python extension module."""

    tensorflow = None

    def get_ext_filename(self, fullname):
        # Also asked for metadata and source distributions, which need no TensorFlow.
        name = build_native.library_name(self.tensorflow) if self.tensorflow else "_comptrain_ops.so"
        return str(Path(*fullname.split(".")[:-1], name))

    def run(self):
        try:
            self.tensorflow = build_native.find_tensorflow()
            super().run()
        except build_native.BuildError as error:
            sys.exit(f"error: {error}")

    def build_extension(self, ext):
        target = Path(self.get_ext_fullpath(ext.name))
        # A library for another TensorFlow, left by an earlier build, must not enter the wheel.
        if not self.inplace:
            for old in target.parent.glob("_comptrain_ops_tf*.so"):
                old.unlink()
        build_native.build_library(self.tensorflow, target, self.parallel or build_native.cores())


setup(
    license="Apache-2.0",
    ext_modules=[Extension("tf_comptrain._comptrain_ops", sources=[])],
    cmdclass={"build_ext": BuildOps},
)
