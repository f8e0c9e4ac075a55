"""One training at a time in a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_FILE = "training.lock"


@contextlib.contextmanager
def held(folder: Path | None) -> Iterator[None]:
    """Keeps other trainings, of this process or another, out of a folder.

    The operating system holds the lock, and lets go of it when the process ends, however that ends: the file
    stays and means nothing by itself. Where the file system has no locks there is none.

    Args:
      folder: Made where it is missing; None: nothing is locked.

    Raises:
      RuntimeError: Another training is in there.
    """
    descriptor = None if folder is None else _opened(folder)
    try:
        if descriptor is not None:
            _lock(descriptor, folder)
        yield
    finally:
        if descriptor is not None:
            # Closing is not enough where a process forked meanwhile has the file open too.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _opened(folder: Path) -> int | None:
    """Of the file that is locked; None where it cannot be made, of which writing the checkpoint will tell."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / _FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    return None


def _lock(descriptor: int, folder: Path | None) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RuntimeError(
            "`checkpoint_dir` must be of one training at a time: each would write over the other's checkpoint. "
            f"Received: {str(folder)!r}, where another ct.fit is training. Wait until that has ended, end it, or "
            "pass another `checkpoint_dir`."
        ) from None
    except OSError:  # a file system without locks
        pass
