"""The op library: found, loaded on first use, and explained when it cannot be."""

import concurrent.futures
import subprocess
import sys

import pytest
import tensorflow as tf

from tf_comptrain import native

LIBRARY = native.library_path()
THIS = "_".join(tf.__version__.split(".")[:2])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder in place of the package's, and nothing loaded."""
    monkeypatch.setattr(native, "_FOLDER", tmp_path)
    monkeypatch.setattr(native, "_ops", None)
    return tmp_path


def test_import_loads_no_library():
    code = (
        "import tf_comptrain; from tf_comptrain import native\n"
        "maps = lambda: '_comptrain_ops' in open('/proc/self/maps').read()\n"
        "assert not native.is_loaded() and not maps()\n"
        "native.ops()\n"
        "assert native.is_loaded() and maps() and native.problem() is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_threads_get_the_same_module():
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        modules = list(pool.map(lambda _: native.ops(), range(32)))
    assert all(m is modules[0] for m in modules)


def test_not_built(folder):
    with pytest.raises(native.LibraryError, match="is not built.*_comptrain_ops_tf.*pip install"):
        native.ops()
    assert "is not built" in native.problem()
    assert not native.is_loaded()


def test_not_built_in_a_checkout_names_make(folder, monkeypatch):
    package = folder / "tf_comptrain"
    package.mkdir()
    (folder / "setup.py").touch()
    monkeypatch.setattr(native, "_FOLDER", package)
    with pytest.raises(native.LibraryError, match="make build"):
        native.ops()


def test_built_for_another_tensorflow(folder):
    (folder / "_comptrain_ops_tf1_99.so").touch()
    with pytest.raises(native.LibraryError) as caught:
        native.ops()
    assert "built for TensorFlow 1.99" in str(caught.value)
    assert f"this is TensorFlow {tf.__version__}" in str(caught.value)


def test_damaged_library(folder):
    (folder / f"_comptrain_ops_tf{THIS}.so").write_bytes(b"not a library")
    with pytest.raises(native.LibraryError, match="does not load"):
        native.ops()


@pytest.mark.long(but=["another byte"])
@pytest.mark.parametrize(
    "damage", ["truncated", "truncated, without its seal", "another byte", "nearly all gone"]
)
def test_a_library_that_is_not_whole_is_not_loaded(damage, folder):
    """In a process of its own: a loader that maps a truncated file dies of a bus error."""
    contents = LIBRARY.read_bytes()
    assert contents[-49:].startswith(b"comptrain")
    contents = {
        "truncated": contents[: len(contents) // 2],
        "truncated, without its seal": contents[:-200],
        "another byte": contents[:100_000] + bytes([contents[100_000] ^ 1]) + contents[100_001:],
        "nearly all gone": contents[:4096],
    }[damage]
    (folder / LIBRARY.name).write_bytes(contents)
    code = f"""
from pathlib import Path
from tf_comptrain import native
native._FOLDER = Path({str(folder)!r})
print(native.problem())
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert f"is damaged: its {len(contents)} bytes are not those that were built" in run.stdout
    assert "pip install" in run.stdout


def test_library_renamed_by_hand(folder):
    source = folder / "other.cc"
    source.write_text(
        "void symbol_of_another_tensorflow();\nvoid (*keep)() = symbol_of_another_tensorflow;\n"
    )
    library = folder / f"_comptrain_ops_tf{THIS}.so"
    subprocess.run(["g++", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    with pytest.raises(native.LibraryError, match="undefined symbol.*another TensorFlow"):
        native.ops()


def test_loads_after_a_failure(folder, monkeypatch):
    assert native.problem() is not None
    monkeypatch.undo()
    assert native.problem() is None
