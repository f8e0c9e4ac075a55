"""The build: its error messages, its two sets of flags, and the wheel it makes."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import tensorflow as tf

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "build_native.py"
LIBRARY = f"_comptrain_ops_tf{'_'.join(tf.__version__.split('.')[:2])}.so"

VERSION = re.search(r'"(.*)"', (ROOT / "tf_comptrain" / "version.py").read_text().split("=")[1])[1]

sys.path.insert(0, str(TOOL.parent))
import build_native  # noqa: E402


def test_without_tensorflow(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('No module named tensorflow')\n")
    env = dict(os.environ, PYTHONPATH=str(tmp_path))
    run = subprocess.run([sys.executable, str(TOOL), "ops"], env=env, capture_output=True, text=True)
    assert run.returncode == 1
    assert "cannot import one" in run.stderr and "--no-build-isolation" in run.stderr
    assert "Traceback" not in run.stderr


def test_cuda_switch_takes_0_or_1(monkeypatch):
    monkeypatch.setenv("TF_COMPTRAIN_CUDA", "yes")
    with pytest.raises(build_native.BuildError, match="must be 0, 1 or unset, not 'yes'"):
        build_native.find_cuda()


def test_cuda_wanted_but_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("TF_COMPTRAIN_CUDA", "1")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(build_native.BuildError, match="no nvcc.*CUDA_HOME"):
        build_native.find_cuda()
    monkeypatch.setenv("TF_COMPTRAIN_CUDA", "0")
    assert build_native.find_cuda() is None


@pytest.mark.parametrize("listed, status", [("GPU 0: H200 (UUID: 1)", 77), ("No devices were found", 0)])
def test_no_gpu_is_a_failure_where_the_driver_lists_one(listed, status, monkeypatch, tmp_path):
    """codec_gpu says with 77 that it found none."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{listed}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(build_native, "find_cuda", lambda: build_native.Cuda("nvcc", tmp_path))
    for name in ("codec_unit", "cuda_unit", "compile_all"):
        monkeypatch.setattr(build_native, name, lambda *args: [])

    def link(command, objects, flags, target):
        assert "-Wl,--exclude-libs,libcudart_static.a" in flags
        target.write_text("#!/bin/sh\nexit 77\n")
        target.chmod(0o755)

    monkeypatch.setattr(build_native, "link", link)
    monkeypatch.setattr(build_native, "BUILD", tmp_path)
    (tmp_path / "cuda").mkdir()
    assert build_native.run_gpu([], 1) == status


def test_bazel_uses_the_same_flags():
    text = (ROOT / "bazel" / "flags.bzl").read_text()

    def flags(name):
        return re.findall(r'"(-[^"]*)"', re.search(rf"^{name} = (.*?)^$", text + "\n", re.M | re.S)[1])

    # -fPIC is Bazel's own business.
    assert flags("CODEC_COPTS") == [f for f in build_native.CODEC_FLAGS if f != "-fPIC"]
    assert flags("KERNEL_COPTS") == [f for f in build_native.KERNEL_FLAGS if f != "-fPIC"]
    assert flags("AVX2_COPTS") == build_native.ISA_FLAGS["avx2.cc"]
    assert flags("AVX512_COPTS") == build_native.ISA_FLAGS["avx512.cc"]
    assert flags("NVCC_FLAGS")[0].startswith(" ".join(build_native.NVCC_FLAGS))


def test_the_version_is_everywhere_the_same():
    for file, pattern in {
        "CHANGELOG.md": r"^## (\S+)",
        "CITATION.cff": r"^version: (\S+)",
        "MODULE.bazel": r'^    version = "(.*)"',
        "examples/bazel_consumer/MODULE.bazel": r'name = "tf_comptrain", version = "(.*?)"',
    }.items():
        assert re.search(pattern, (ROOT / file).read_text(), re.M)[1] == VERSION, file


def test_a_source_distribution_has_what_a_build_needs(tmp_path):
    code = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("tf_comptrain-*.tar.gz")
    with tarfile.open(archive) as sources:
        names = {name.partition("/")[2] for name in sources.getnames()}
    needed = {
        "setup.py",
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "tools/build_native.py",
        "tf_comptrain/py.typed",
    }
    needed |= {
        str(path.relative_to(ROOT))
        for pattern in ("cc/**/*.h", "cc/**/*.cc", "cc/**/*.cu", "tf_comptrain/**/*.py")
        for path in ROOT.glob(pattern)
    }
    assert len(needed) > 400 and needed <= names, sorted(needed - names)


def test_libraries_that_were_built_before_are_taken_as_they_are(tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(tmp_path)]
    env = dict(os.environ, TF_COMPTRAIN_PREBUILT="1")
    subprocess.run(command, cwd=ROOT, env=env, check=True, capture_output=True)
    found = {path.name: path.read_bytes() for path in (tmp_path / "tf_comptrain").iterdir()}
    assert found == {path.name: path.read_bytes() for path in ROOT.glob("tf_comptrain/_comptrain_ops_tf*.so")}
    assert LIBRARY in found


@pytest.mark.long
def test_wheel_works_outside_the_sources(tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet", "--no-cache-dir"]
    offline = ["--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "wheel", *offline, "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("tf_comptrain-*.whl")
    assert "-py3-none-linux_" in wheel.name  # the library is of no Python
    names = zipfile.ZipFile(wheel).namelist()
    assert [n for n in names if n.endswith(".so")] == [f"tf_comptrain/{LIBRARY}"]
    top = {n.split("/")[0] for n in names}
    assert {t for t in top if not t.endswith(".dist-info")} == {"tf_comptrain"}
    assert "tf_comptrain/py.typed" in names

    site = tmp_path / "site"
    subprocess.run([*pip, "install", *offline, "--target", str(site), str(wheel)], check=True)
    code = (
        "import tf_comptrain; from tf_comptrain import native; native.ops(); print(tf_comptrain.__file__)\n"
        "from importlib.metadata import version; print(version('tf_comptrain'))"
    )
    env = dict(os.environ, PYTHONPATH=str(site))
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert run.stdout.split() == [str(site / "tf_comptrain" / "__init__.py"), VERSION]
