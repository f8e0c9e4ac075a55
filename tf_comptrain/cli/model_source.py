"""The model of a command: one of keras.applications, a `.keras` file, or a function of the user's."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.cli.options import SourceError
from tf_comptrain.memory.batches import random_batch

CLASSES = 1000


class Loaded(NamedTuple):
    """A model and its data.

    Attributes:
      model: Compiled.
      data: (x, y) of the user's, y None for a train step that takes none; None: random data will do.
    """

    model: keras.Model
    data: tuple | None

    def batch(self, size: int) -> tuple:
        """(x, y), tensors of so many samples; the user's data are repeated where they are fewer.

        Raises:
          ValueError: There are no data, and the model has no input shapes for random ones.
        """
        if self.data is None:
            return random_batch(self.model, size)
        return tf.nest.map_structure(lambda values: _samples(values, size), self.data)


def _samples(values: Any, size: int) -> Any:
    if values is None:
        return None
    values = np.asarray(values)
    return tf.constant(values[np.arange(size) % len(values)])


def check(source: str) -> None:
    """Says of a source that it cannot be one, before a model is made.

    Raises:
      SourceError: There is no such file, and no such model of keras.applications.
    """
    if ":" in source or source.endswith(".keras"):
        path = Path(source.rpartition(":")[0] if ":" in source else source)
        if not path.is_file():
            raise SourceError(f"There is no file {str(path)!r}. Received: {source!r}.")
    elif not _is_application(source):
        names = ", ".join(sorted(filter(_is_application, dir(keras.applications))))
        raise SourceError(
            f"A model is FILE.py:FUNCTION, a .keras file, or one of {names} (keras.applications). "
            f"Received: {source!r}."
        )


def title(source: str, image: int) -> str:
    """What tables call it."""
    return f"{source}, {image} x {image} px" if _is_application(source) else source


def load(source: str, image: int = 224, loss: str | None = None) -> Loaded:
    """Makes the model.

    Args:
      source: "FILE.py:FUNCTION", whose function returns a compiled model, or (model, x) or (model, x, y) with
        samples to measure by; a ".keras" file; or the name of a model of keras.applications.
      image: Width and height of the images of a model of keras.applications.
      loss: Of a model that is not compiled, with Adam.

    Raises:
      SourceError: None of these.
    """
    check(source)
    keras.utils.set_random_seed(0)
    data = None
    if ":" in source:
        made = _made_by_function(source)
        model, *given = made if isinstance(made, tuple) else (made,)
        if given:
            data = (given[0], given[1] if len(given) > 1 else None)
            _check_data(source, data)
    elif source.endswith(".keras"):
        model = keras.models.load_model(source)
    else:
        build = getattr(keras.applications, source)
        model = build(weights=None, input_shape=(image, image, 3), classes=CLASSES)
        compile_classifier(model)
    if not isinstance(model, keras.Model):
        raise SourceError(
            f"{source!r} must give a keras.Model, or a tuple (model, x, y). Received: {model!r}."
        )
    if _keras.is_overridden(model):
        raise SourceError(
            f"{source!r} must give the plain model, which commands compress themselves. "
            f"Received: {model.name!r}, which is compressed."
        )
    if not _keras.is_compiled(model):
        if loss is None:
            raise SourceError(
                f"The model of {source!r} is not compiled: compile it in its function, or pass --loss."
            )
        model.compile("adam", loss)
    return Loaded(model, data)


def compile_classifier(model: keras.Model, jit_compile: bool | str = "auto") -> None:
    """Compiles a network that ends in classes, with or without a softmax, for labels that are numbers."""
    softmax = getattr(model.layers[-1], "activation", None) is keras.activations.softmax
    model.compile(
        optimizer=keras.optimizers.SGD(0.01, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=not softmax),
        jit_compile=jit_compile,
    )


def _made_by_function(source: str) -> Any:
    """What the function of a script returns.

    Raises:
      SourceError: There is none, or it fails; the message says where.
    """
    file = Path(source.rpartition(":")[0]).resolve()
    try:
        return _function(source, file)()
    except SourceError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
        where = "" if line is None else f" in line {line} of {file.name!r}"
        raise SourceError(f"{source!r} failed{where}: {type(error).__name__}: {error}") from error


def _check_data(source: str, data: tuple) -> None:
    parts = [part for part in tf.nest.flatten(data) if part is not None]
    if not all(hasattr(part, "__array__") and np.ndim(part) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise SourceError(f"{source!r} must give x and y as arrays. Received: {kinds}.")
    counts = [len(part) for part in parts]
    if len({*counts}) != 1 or not counts[0]:
        raise SourceError(
            f"{source!r} must give as many samples in x as in y, and one at least. Received: {counts}."
        )


def _function(source: str, file: Path) -> Any:
    """The function of a script, which is imported with its folder on the path, as Python would run it."""
    path, _, name = source.rpartition(":")
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise SourceError(f"{path!r} is no Python file. Received: {source!r}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        found = sorted(n for n, value in vars(module).items() if callable(value) and not n.startswith("_"))
        raise SourceError(f"{path!r} has no function {name!r}. It has: {', '.join(found) or 'none'}.")
    return function


def _is_application(name: str) -> bool:
    """keras.applications has modules beside its model functions."""
    return name[:1].isupper() and callable(getattr(keras.applications, name, None))
