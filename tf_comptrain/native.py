"""Finds and loads the op library, on first use.

Importing the package loads no library. The first call of `ops` does; it picks the library that was
built for the running TensorFlow and, where there is none, says what was found and what to do.
"""

from __future__ import annotations

import hashlib
import re
import struct
import threading
from pathlib import Path
from types import ModuleType

import tensorflow as tf

from tf_comptrain import backend  # noqa: F401 (it refuses what does not serve)

_FOLDER = Path(__file__).absolute().parent  # not resolved: Bazel puts links side by side
_SEAL, _SEAL_BYTES = b"comptrain", 9 + 8 + 32  # name, size, SHA-256
_lock = threading.Lock()
_ops: ModuleType | None = None


class LibraryError(RuntimeError):
    """The op library is missing, was built for another TensorFlow, or does not load."""


def ops() -> ModuleType:
    """The module of op wrappers; loads the library at the first call.

    Returns:
      What `tf.load_op_library` returns: one function per registered op.

    Raises:
      LibraryError: There is no library that fits the running TensorFlow.

    Examples:
      >>> native.ops().__name__ in sys.modules
      True
    """
    global _ops
    if _ops is None:
        with _lock:
            if _ops is None:
                _ops = _load(library_path())
    return _ops


def is_loaded() -> bool:
    """True once `ops` has succeeded."""
    return _ops is not None


def problem() -> str | None:
    """Why the ops cannot be used, as text for a report; None when they can. Loads the library."""
    try:
        ops()
    except LibraryError as error:
        return str(error)
    return None


def library_path() -> Path:
    """Where the library for the running TensorFlow is.

    Raises:
      LibraryError: It is not there.
    """
    path = _FOLDER / f"_comptrain_ops_tf{_minor_version(tf.__version__, '_')}.so"
    if path.exists():
        return path
    others = [_version_in(p.name) for p in sorted(_FOLDER.glob("_comptrain_ops_tf*.so"))]
    if others:
        raise LibraryError(
            f"The op library of tf_comptrain was built for TensorFlow {' and '.join(others)}, but this is "
            f"TensorFlow {tf.__version__}. {_remedy()}"
        )
    raise LibraryError(
        f"The op library of tf_comptrain is not built: there is no {path.name} in {_FOLDER}. {_remedy()}"
    )


def _load(path: Path) -> ModuleType:
    if not _is_whole(path.read_bytes()):  # the loader would map what is not there, and die of a bus error
        raise LibraryError(
            f"The op library {path} is damaged: its {path.stat().st_size} bytes are not those that were "
            f"built. {_remedy()}"
        )
    try:
        return tf.load_op_library(str(path))
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        reason = str(error)
        if "undefined symbol" in reason:
            reason += (
                f" (The library expects another TensorFlow than {tf.__version__}: one of a different "
                "build, or a library renamed by hand.)"
            )
        raise LibraryError(f"The op library {path} does not load: {reason} {_remedy()}") from error


def _is_whole(contents: bytes) -> bool:
    """Whether a file is the library that was built: by its seal, or else (Bazel) its ELF header."""
    body, seal = contents[:-_SEAL_BYTES], contents[-_SEAL_BYTES:]
    if seal.startswith(_SEAL):
        size = int.from_bytes(seal[len(_SEAL) : len(_SEAL) + 8], "little")
        return size == len(body) and hashlib.sha256(body).digest() == seal[len(_SEAL) + 8 :]
    if len(contents) < 64 or not contents.startswith(b"\x7fELF\x02"):
        return True  # no library at all: the loader says so
    (start,) = struct.unpack_from("<Q", contents, 40)  # of the section headers, which end the file
    size, count = struct.unpack_from("<HH", contents, 58)
    return start + size * count <= len(contents)


def _minor_version(version: str, separator: str) -> str:
    return separator.join(version.split(".")[:2])


def _version_in(name: str) -> str:
    found = re.search(r"_tf(\d+)_(\d+)", name)
    return f"{found[1]}.{found[2]}" if found else f"an unknown version ({name})"


def _remedy() -> str:
    if (_FOLDER.parent / "setup.py").exists():
        return "In the source folder run: make build (or pip install --no-build-isolation -e .)"
    return (
        "Build it for this TensorFlow from the sources of tf_comptrain: "
        "pip install --no-build-isolation --force-reinstall --no-deps ."
    )
