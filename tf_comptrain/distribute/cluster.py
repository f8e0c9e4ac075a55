"""The workers that train together, as TF_CONFIG names them."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras, arguments
from tf_comptrain.distribute.meeting import meet

_connected: Any = None


def connect(timeout_s: float = 600.0) -> tf.distribute.Strategy:
    """Connects this process with the others that the environment variable TF_CONFIG names, and waits for them.

    `fit` does it where it was not done. TensorFlow must not have run anything before: a script whose first lines make
    tensors or a tf.data.Dataset calls this before them.

    Args:
      timeout_s: How long to wait for the others at most. After 30 s a line says for whom.

    Returns:
      The strategy that the model is to be made under: of all workers' devices; without TF_CONFIG of this
      machine's GPUs where it has several, else of one device.

    Raises:
      ValueError: TF_CONFIG is not as TensorFlow wants it.
      TimeoutError: A worker has not come.
      OSError: This worker's port is in use.
      RuntimeError: TensorFlow has run something already.
    """
    global _connected
    if _connected is None:
        _connected = _strategy(arguments.real("timeout_s", timeout_s, above=0))
    return _connected


def is_first_worker() -> bool:
    """Whether this process is the one that writes what is needed once: the model, a report. True without TF_CONFIG."""
    found = _task()
    return found is None or found == ("chief", 0) or (found == ("worker", 0) and "chief" not in _cluster())


def _strategy(timeout_s: float) -> tf.distribute.Strategy:
    workers = _workers()
    if len(workers) < 2:
        several = len(tf.config.list_physical_devices("GPU")) > 1
        return tf.distribute.MirroredStrategy() if several else tf.distribute.get_strategy()
    if _keras.has_run():
        raise RuntimeError(
            "Workers must be connected before TensorFlow runs anything, and it has: a tensor, a variable or a "
            "tf.data.Dataset was made before. Call ct.distribute.connect() first in the script, or give "
            "ct.distribute.fit NumPy arrays, or a function that makes the dataset."
        )
    kind, number = _config()["task"]["type"], int(_config()["task"]["index"])
    meet(workers, number + (len(_cluster().get("chief", ())) if kind == "worker" else 0), timeout_s)
    return _keras.connect_workers()


def _config() -> dict[str, Any]:
    text = os.environ.get("TF_CONFIG", "") or "{}"
    try:
        found = json.loads(text)
        cluster, task = found.get("cluster", {}), found.get("task", {})
        known = not cluster or 0 <= int(task["index"]) < len(cluster[task["type"]])
        addresses = [address for job in cluster.values() for address in job]
        wrong = [address for address in addresses if not re.fullmatch(r".+:[1-9]\d{0,4}", address)]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        known, addresses, wrong = False, [], []
    twice = next((address for address in addresses if addresses.count(address) > 1), None)
    if known and (wrong or twice):
        what = f"{wrong[0]!r}" if wrong else f"{twice!r} twice"
        raise ValueError(f"TF_CONFIG must name each worker's own host:port. Received: {what}.")
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
