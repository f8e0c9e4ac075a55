"""The names of a model's layers: in those that TensorFlow gives to their operations, and in a fingerprint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection

from tensorflow import keras


def split_name(name: str, paths: Collection[str], keras_3: bool) -> tuple[str, str]:
    """What a layer is called in its model, and what its operation is called inside of it.

    "resnet_1/block_1/conv_1/BiasAdd" -> ("block/conv", "BiasAdd"). Keras 3 opens the scope of a layer twice
    for each call, to build it and to call it: TensorFlow numbers the second one, so the name without its
    number comes first. Keras 2 opens it once, and a first call has no number.

    Args:
      name: Of the operation, with the scopes that it is in.
      paths: Of all layers, as the model names them: "block/conv".
      keras_3: Whether Keras 3 made the scopes.

    Returns:
      (path, operation); the path is "" where no scope is a layer's.
    """
    scopes = name.split("/")
    path, end = "", 0
    for place, scope in enumerate(scopes[:-1]):
        names = (re.sub(r"_\d+$", "", scope), scope)
        inside = (f"{path}/{one}" if path else one for one in (names if keras_3 else names[::-1]))
        found = next((one for one in inside if one in paths), None)
        if found is not None:
            path, end = found, place + 1
    return path, "/".join(scopes[end:])


def fingerprint(model: keras.Model) -> str:
    """Of a model's name, the names, types and activations of its layers, and the shapes of its weights and inputs."""
    layers = []
    for layer in getattr(model, "layers", ()):
        activation = getattr(layer, "activation", None)
        layers.append((layer.name, type(layer).__name__, getattr(activation, "__name__", "")))
    weights = [(weight.name, tuple(weight.shape)) for weight in model.weights]
    inputs = [tuple(tensor.shape)[1:] for tensor in getattr(model, "inputs", None) or ()]
    return hashlib.sha256(repr((model.name, layers, weights, inputs)).encode()).hexdigest()[:16]
