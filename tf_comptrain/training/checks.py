"""What the arguments of `fit` must be."""

from __future__ import annotations

import numbers
import os
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras


def check_model(model: Any) -> None:
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a compiled keras.Model. Received: {_shown(model)}.")
    _keras.require_compiled(model)


def check_strategy(model: keras.Model) -> None:
    strategy = model.distribute_strategy
    mirrored = isinstance(strategy, tf.distribute.MirroredStrategy)
    if strategy.num_replicas_in_sync > 1 and _keras.jit_compile(model):
        raise ValueError(
            "`model` must be compiled with jit_compile=False under a strategy of several replicas: Keras has XLA "
            "compile the step of all replicas as one program, which runs on one device. Received a model of "
            f"{strategy.num_replicas_in_sync} replicas with jit_compile=True."
        )
    if strategy.num_replicas_in_sync > 1 and not mirrored:
        raise ValueError(
            "ct.fit trains in one process, on one device or under a tf.distribute.MirroredStrategy. Received a "
            f"model made under {type(strategy).__name__}: for several workers use ct.distribute.fit."
        )


def replicas(model: keras.Model, batch_size: int) -> int:
    """Of the model's strategy."""
    count = model.distribute_strategy.num_replicas_in_sync
    if batch_size < count:
        raise ValueError(
            f"`batch_size` must be at least the number of replicas, {count}. Received: {batch_size}."
        )
    return count


def verbosity(verbose: Any) -> int:
    """0, 1 or 2; Keras' "auto" is 1."""
    if not isinstance(verbose, (int, str)) or verbose not in (0, 1, 2, "auto"):
        raise ValueError(f"`verbose` must be 0, 1 or 2. Received: {_shown(verbose)}.")
    return 1 if verbose == "auto" else int(verbose)


def check_callbacks(callbacks: Any) -> None:
    if callbacks is None:
        return
    for callback in tf.nest.flatten(getattr(callbacks, "callbacks", callbacks)):
        if isinstance(callback, type) or not hasattr(callback, "set_model"):
            raise TypeError(
                "`callbacks` must be a list of keras.callbacks.Callback objects. "
                f"Received in it: {_shown(callback)}."
            )
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ValueError(
                "`callbacks` must be without keras.callbacks.BackupAndRestore: its weights would be of another moment "
                f"than ct.fit's state. Received: one with backup_dir={callback.backup_dir!r}. Leave it out, and pass "
                "`checkpoint_dir`, which does the same and keeps the callbacks too."
            )


def check_validation(data: Any) -> None:
    if isinstance(data, (str, bytes, numbers.Number)):
        raise TypeError(
            "`validation_data` must be (x, y), (x, y, sample_weight) or a tf.data.Dataset of batches. "
            f"Received: {_shown(data)}."
        )


def folder(given: Any) -> Path:
    """Of the checkpoints."""
    path = os.fspath(given) if isinstance(given, (str, os.PathLike)) else ""
    usable = isinstance(path, str) and path and "\0" not in path
    if not usable or (os.path.exists(path) and not os.path.isdir(path)):
        raise ValueError(
            "`checkpoint_dir` must be the path of a folder, which is made where it is missing, or None. "
            f"Received: {_shown(given)}, which is none. Pass another path."
        )
    return Path(path)


def _shown(value: Any) -> str:
    return f"{repr(value)[:80]} (of type {type(value).__name__})"
