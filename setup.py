"""Builds the op library for the installed TensorFlow; everything else is in pyproject.toml.

TF_COMPTRAIN_PREBUILT=1 compiles nothing: the wheel gets the libraries that lie in tf_comptrain (`make wheel`).
"""

import os
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))
import build_native  # noqa: E402

PREBUILT = os.environ.get("TF_COMPTRAIN_PREBUILT") == "1"


class BuildOps(build_ext):
    """Compiles with tools/build_native.py; the library is no Python extension module."""

    tensorflow = None

    def get_ext_filename(self, fullname):
        # Also asked for metadata and source distributions, which need no TensorFlow.
        name = build_native.library_name(self.tensorflow) if self.tensorflow else "_comptrain_ops.so"
        return str(Path(*fullname.split(".")[:-1], name))

    def run(self):
        try:
            if not PREBUILT:
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
        if PREBUILT:
            self._copy_libraries(target.parent)
        else:
            build_native.build_library(self.tensorflow, target, self.parallel or build_native.cores())

    def _copy_libraries(self, folder):
        libraries = sorted(ROOT.glob("tf_comptrain/_comptrain_ops_tf*.so"))
        if not libraries:
            raise build_native.BuildError(
                "TF_COMPTRAIN_PREBUILT=1 takes the op libraries that lie in tf_comptrain, and there is none. "
                "Build one first: python tools/build_native.py ops."
            )
        folder.mkdir(parents=True, exist_ok=True)
        for library in libraries:
            shutil.copy2(library, folder)


class WheelOfAnyPython(bdist_wheel):
    """The library is of a TensorFlow, which its name says, and of no Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    license="Apache-2.0",
    ext_modules=[Extension("tf_comptrain._comptrain_ops", sources=[])],
    cmdclass={"build_ext": BuildOps, "bdist_wheel": WheelOfAnyPython},
)
