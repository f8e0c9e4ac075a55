"""The workers that train together, as TF_CONFIG names them."""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras

_connected: Any = None


def connect() -> tf.distribute.Strategy:
    """Connects this process with the others that the environment variable TF_CONFIG names, and waits for them.

    `fit` does it where it was not done. TensorFlow must not have run anything before: a script whose first lines make
    tensors or a tf.data.Dataset calls this before them.

    Returns:
      The strategy that the model is to be made under: of all workers' devices; without TF_CONFIG of this
      machine's GPUs where it has several, else of one device.

    Raises:
      ValueError: TF_CONFIG is not as TensorFlow wants it.
      RuntimeError: TensorFlow has run something already.
    """
    global _connected
    if _connected is None:
        _connected = _strategy()
    return _connected


def is_first_worker() -> bool:
    """Whether this process is the one that writes what is needed once: the model, a report. True without TF_CONFIG."""
    found = _task()
    return found is None or found == ("chief", 0) or (found == ("worker", 0) and "chief" not in _cluster())


def _strategy() -> tf.distribute.Strategy:
    if len(_workers()) < 2:
        several = len(tf.config.list_physical_devices("GPU")) > 1
        return tf.distribute.MirroredStrategy() if several else tf.distribute.get_strategy()
    try:
        return _keras.connect_workers()
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise RuntimeError(
            "Workers must be connected before TensorFlow runs anything, and it has: a tensor, a variable or a "
            "tf.data.Dataset was made before. Call ct.distribute.connect() first in the script, or give "
            "ct.distribute.fit NumPy arrays, or a function that makes the dataset."
        ) from None


def _config() -> dict[str, Any]:
    text = os.environ.get("TF_CONFIG", "") or "{}"
    try:
        found = json.loads(text)
        cluster, task = found.get("cluster", {}), found.get("task", {})
        known = not cluster or int(task["index"]) < len(cluster[task["type"]])
    except (AttributeError, KeyError, TypeError, ValueError):
        known = False
    if not known:
        raise ValueError(
            'TF_CONFIG must be JSON such as {"cluster": {"worker": ["host0:port", "host1:port"]}, "task": {"type": '
            '"worker", "index": 0}}, with this process in its cluster; `tf-comptrain launch` sets it. '
            f"Received: {text[:200]!r}."
        )
    return found


def _cluster() -> dict[str, list[str]]:
    return _config().get("cluster", {})


def _workers() -> list[str]:
    """Addresses."""
    return [*_cluster().get("chief", ()), *_cluster().get("worker", ())]


def _task() -> tuple[str, int] | None:
    if not _cluster():
        return None
    task = _config()["task"]
    return task["type"], int(task["index"])
