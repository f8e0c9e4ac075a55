"""Where the file of what waits outside of memory lies: on a disk, since a file system in memory would free nothing."""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from pathlib import Path

from absl import logging

_MOUNTS = Path("/proc/self/mounts")
_IN_MEMORY = ("tmpfs", "ramfs")
_ON_DISK = "/var/tmp"  # the place for large temporary files where the usual one is in memory


def default_folder() -> str:
    """This user's own below the temporary folder, or below /var/tmp where that is in memory; made where it is not
    there.

    Raises:
      ValueError: Somebody else's folder has its name.
    """
    usual = tempfile.gettempdir()
    parents = [usual, _ON_DISK] if os.access(_ON_DISK, os.W_OK | os.X_OK) else [usual]
    parent = next((folder for folder in parents if not is_in_memory(folder)), usual)
    path = os.path.join(parent, f"tf_comptrain-{os.getuid()}")
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ValueError(f"{path!r} is not a folder of this user's own: give Offload a `folder`.")
    return path


@functools.cache
def warn_of_memory(folder: str) -> None:
    """Says once of a folder that what waits there takes the machine's memory."""
    if is_in_memory(folder):
        logging.warning(
            "storage='offload' writes to %s, a file system in memory: TensorFlow holds less, the machine does not. "
            "Give Offload a `folder` on a disk.",
            folder,
        )


def is_in_memory(folder: str) -> bool:
    """Whether a folder is of a file system in memory; False where the system does not tell."""
    path = os.path.realpath(folder)
    found, kind = "", ""
    try:
        mounts = _MOUNTS.read_text().splitlines()
    except OSError:
        return False
    for mount in mounts:
        point, its_kind = mount.split(" ")[1:3]
        point = point.replace("\\040", " ")
        if len(point) >= len(found) and os.path.commonpath((point, path)) == point:
            found, kind = point, its_kind
    return kind in _IN_MEMORY
