"""A file that holds JSON with arrays in it, whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import stat
import struct
from pathlib import Path
from typing import Any

import numpy as np

from tf_comptrain.training import plain_data

_FORMAT = 3
_MAGIC = b"ct.fit"
_HEADER = struct.Struct("<6sHQQ")  # magic, format, bytes of the file, bytes of its JSON
_DIGEST_BYTES = hashlib.sha256().digest_size
_CHUNK_BYTES = 1 << 20


def write(path: Path, content: dict[str, Any]) -> None:
    """Writes a file so that a kill at any moment leaves the last complete one in place.

    The file is a header, JSON, the arrays that the JSON refers to, and the SHA-256 of all that.

    Args:
      path: Its folder is made where it is missing.
      content: What JSON can say, and NumPy arrays.

    Raises:
      OSError: No space, no permission. The last complete file is still in place.
    """
    arrays: list[np.ndarray] = []
    length = 0

    def reference(array: np.ndarray) -> dict[str, Any]:
        nonlocal length
        arrays.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        at, length = length, length + array.nbytes
        return {"at": at, "dtype": plain_data.dtype_code(array.dtype), "shape": array.shape}

    text = json.dumps(content, default=reference).encode()
    total = _HEADER.size + len(text) + length + _DIGEST_BYTES
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.unlink(missing_ok=True)  # what a killed run left there
            with open(temporary, "xb") as file:  # a link there is not followed
                digest = hashlib.sha256()
                parts: list[Any] = [_HEADER.pack(_MAGIC, _FORMAT, total, len(text)), text, *arrays]
                for part in parts:
                    file.write(part)
                    digest.update(part)
                file.write(digest.digest())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):  # half a file takes space
                temporary.unlink()
            raise
        _sync(path.parent)
    except OSError as error:
        raise OSError(
            error.errno,
            f"ct.fit could not write its checkpoint {path}: {error.strerror or error}. Free space there, make the "
            "folder writable, or choose another `checkpoint_dir`. The last complete checkpoint, if there is one, is "
            "still in place: the same call goes on from it.",
        ) from error


def read(path: Path) -> Any:
    """What `write` was given, tuples as lists; the arrays cannot be written to.

    Raises:
      FileNotFoundError: There is none.
      ValueError: It is damaged, was not made by `write` of this version, or is a link to nowhere.
      OSError: No permission, or the disk fails.
    """
    try:
        text, arrays = _content(path)
    except FileNotFoundError:
        for link in (path, path.parent):
            if link.is_symlink() and not link.exists():
                raise refusal(
                    link, f"a link to {os.readlink(link)}, which is not there (a disk that is not mounted?)"
                ) from None
        raise
    except OSError as error:
        raise OSError(
            error.errno,
            f"ct.fit could not read its checkpoint {path}: {error.strerror or error}. Make it readable, or choose "
            "another `checkpoint_dir`.",
        ) from error

    def array(found: dict[str, Any]) -> Any:
        return _array(found, arrays) if found.keys() == {"at", "dtype", "shape"} else found

    try:
        return json.loads(text, object_hook=array)
    # The content is what somebody wrote, but not `write`: there is no telling what fails.
    except Exception as error:
        raise refusal(path, error) from None


def refusal(path: Path, reason: Any) -> ValueError:
    """The one error for every file that is no checkpoint."""
    return ValueError(f"{path} is not a checkpoint of ct.fit: {reason}. Remove it to begin anew.")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _content(path: Path) -> tuple[bytes, bytes]:
    """JSON and arrays of a file that is as it was written. Takes no more memory than the file has bytes."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for a writer
        raise refusal(path, "no regular file")
    with open(path, "rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or not head.startswith(_MAGIC):
            raise refusal(path, "it does not begin as one does")
        _, version, total, text_bytes = _HEADER.unpack(head)
        if version != _FORMAT:
            raise refusal(path, f"format {version}, not {_FORMAT}")
        array_bytes = total - _HEADER.size - text_bytes - _DIGEST_BYTES
        if total != found.st_size or array_bytes < 0:
            raise refusal(path, f"{found.st_size} bytes, another length than was written")
        digest, left = hashlib.sha256(head), text_bytes + array_bytes
        while left and (part := file.read(min(left, _CHUNK_BYTES))):
            digest.update(part)
            left -= len(part)
        if file.read() != digest.digest():
            raise refusal(path, "its content is not what was written")
        file.seek(_HEADER.size)
        return file.read(text_bytes), file.read(array_bytes)


def _array(found: dict[str, Any], content: bytes) -> np.ndarray:
    at, shape, dtype = found["at"], found["shape"], np.dtype(found["dtype"])
    if plain_data.dtype_code(dtype) != found["dtype"] or any(
        type(n) is not int or n < 0 for n in (at, *shape)
    ):
        raise ValueError("an array without a place, type or shape")
    return np.frombuffer(content, dtype, math.prod(shape), at).reshape(shape)
