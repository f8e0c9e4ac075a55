"""Which TensorFlow there is, and which backend Keras has, found before either is imported.

A wrong one may not import. Importing this module raises where one does not serve.
"""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

NEWEST_REFUSED = (2, 17)  # the internals that _keras uses are those of later ones
LEGACY = (2, 15)  # with Keras 2 and TensorFlow Addons
# What TensorFlow is installed as; a build of one's own may have another name, and is taken as it is.
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu", "tensorflow-rocm")
_INSTALL = "pip install 'tensorflow-cpu>=2.21' (with a GPU: 'tensorflow[and-cuda]>=2.21')"


def tensorflow_version() -> str | None:
    """The version of the TensorFlow that an import finds; None where that is not known before."""
    if "tensorflow" in sys.modules:
        return getattr(sys.modules["tensorflow"], "__version__", None)
    found = set()
    for name in _DISTRIBUTIONS:
        try:
            found.add(version(name))
        except PackageNotFoundError:
            continue
    return found.pop() if len(found) == 1 else None  # of several none is known to be the one that is imported


def require_supported_version() -> None:
    """Refuses a TensorFlow that there is no lane for.

    Raises:
      ImportError: There is none, or it is too old.
    """
    if "tensorflow" not in sys.modules and find_spec("tensorflow") is None:
        raise ImportError(
            f"tf_comptrain needs TensorFlow, which is not installed: {_INSTALL}, then build the ops."
        )
    found = tensorflow_version()
    numbers = re.match(r"(\d+)\.(\d+)", found or "")
    if numbers is None:
        return
    minor = int(numbers[1]), int(numbers[2])
    if minor <= NEWEST_REFUSED and minor != LEGACY:
        raise ImportError(
            f"tf_comptrain needs TensorFlow 2.18 or newer, or the legacy lane's 2.15; yours is {found}: {_INSTALL}, "
            "then build the ops again for it."
        )


def keras_backend() -> str:
    """The name of Keras' backend, as Keras 3 chooses it; "tensorflow" for Keras 2, which has no other."""
    try:
        if int(version("keras").split(".")[0]) < 3:
            return "tensorflow"
    except PackageNotFoundError:
        return "tensorflow"  # the import that follows says that there is no Keras
    if "keras" in sys.modules:
        return sys.modules["keras"].backend.backend()
    if os.environ.get("KERAS_BACKEND"):
        return os.environ["KERAS_BACKEND"]
    home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    try:
        return json.loads((home / "keras.json").read_text()).get("backend", "tensorflow")
    except (OSError, ValueError, AttributeError):
        return "tensorflow"


def require_tensorflow_backend() -> None:
    """Refuses another backend of Keras.

    Raises:
      ImportError: Keras has another backend.
    """
    found = keras_backend()
    if found != "tensorflow":
        raise ImportError(
            f"tf_comptrain needs Keras with the TensorFlow backend; yours is {found!r}. Set KERAS_BACKEND=tensorflow "
            "before Keras is imported, or take `backend` out of ~/.keras/keras.json."
        )


require_supported_version()
require_tensorflow_backend()
