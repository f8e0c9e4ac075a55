"""Which backend Keras has, found before Keras is imported: another than TensorFlow's may not even import.

Importing this module raises where it is another.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


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


def require_tensorflow() -> None:
    """Refuses another backend.

    Raises:
      ImportError: Keras has another backend.
    """
    found = keras_backend()
    if found != "tensorflow":
        raise ImportError(
            f"tf_comptrain needs Keras with the TensorFlow backend; yours is {found!r}. Set KERAS_BACKEND=tensorflow "
            "before Keras is imported, or take `backend` out of ~/.keras/keras.json."
        )


require_tensorflow()
