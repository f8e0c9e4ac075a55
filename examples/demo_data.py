"""Fashion-MNIST: the whole set where it can be downloaded, else the part of it in examples/data."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

SHIPPED = Path(__file__).resolve().parent / "data" / "fashion_mnist.npz"

_DOWNLOAD = """
import socket, sys
socket.setdefaulttimeout(10)
import numpy as np
from keras.datasets import fashion_mnist
(x, y), (x_test, y_test) = fashion_mnist.load_data()
np.savez_compressed(sys.argv[1], x_train=x, y_train=y, x_test=x_test, y_test=y_test)
"""


class Images(NamedTuple):
    """float32 images [n, 28, 28, 1] in [0, 1] and int32 labels [n], for training and testing."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str


def load(folder: Path, train: int, test: int, offline: bool, timeout_s: float = 60) -> Images:
    """The first `train` and `test` images.

    Args:
      folder: A downloaded set is kept here.
      train: Images to train with.
      test: Images to test with.
      offline: Use the shipped part without trying to download.
      timeout_s: A slower download is given up.
    """
    whole = folder / "fashion_mnist.npz"
    if not whole.exists() and not offline:
        _download(whole, timeout_s)
    path, source = (whole, "Fashion-MNIST") if whole.exists() else (SHIPPED, "shipped part of Fashion-MNIST")
    with np.load(path, allow_pickle=False) as file:
        x, y = file["x_train"][:train], file["y_train"][:train]
        x_test, y_test = file["x_test"][:test], file["y_test"][:test]
    return Images(_pixels(x), y.astype("int32"), _pixels(x_test), y_test.astype("int32"), source)


def _pixels(images: np.ndarray) -> np.ndarray:
    return images[..., None].astype("float32") / 255


def _download(target: Path, timeout_s: float) -> None:
    """Keras' own loader, in a child process: one that hangs can be ended, and leaves nothing behind."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        environment = dict(os.environ)
        if not (Path.home() / ".keras" / "datasets" / "fashion-mnist").exists():
            environment["KERAS_HOME"] = scratch
        partial = Path(scratch) / target.name
        try:
            run = subprocess.run(
                [sys.executable, "-c", _DOWNLOAD, str(partial)],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return
        if run.returncode == 0:
            os.replace(partial, target)
