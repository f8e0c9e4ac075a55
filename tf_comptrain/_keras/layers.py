"""Layers of a model: their calls, their overrides, the graph they form.

Private: `global_state`, `in_symbolic_scope` (Keras 3.15).
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tf_comptrain._keras.version import KERAS_3

if KERAS_3:
    from keras.src.backend.common import global_state
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope

    OPERATION = keras.Operation  # layers are operations too
    VARIABLES: tuple = (tf.Variable, keras.Variable)
else:
    OPERATION = keras.layers.Layer
    VARIABLES = (tf.Variable,)

_NAMES = "object_name_uids"  # of Keras 3, where it counts layers of a name


def class_call(layer: keras.layers.Layer) -> Callable:
    """`call` of the layer's class, which instrumentation does not touch."""
    return type(layer).call


def set_call(layer: keras.layers.Layer, call: Callable) -> None:
    """Overrides `call` for one layer instance, past Keras' attribute tracking."""
    layer.__dict__["call"] = call


def reset_call(layer: keras.layers.Layer) -> None:
    layer.__dict__.pop("call", None)


def has_own_call(layer: keras.layers.Layer) -> bool:
    return "call" in layer.__dict__


def save_along(layer: keras.layers.Layer, variables: Callable[[], dict[str, Any]]) -> None:
    """Puts variables into every SavedModel of a layer, since functions that are saved with it read them.

    TensorFlow refuses to save a function that reads what no saved object holds. Checkpoints stay as they are.

    Args:
      layer: A model, or a layer.
      variables: Returns them by name, when the layer is saved.

    Private: `Layer._trackable_children` (Keras 3.15, 2.15).
    """
    own, reference = type(layer)._trackable_children, weakref.ref(layer)

    def children(save_type: str = "checkpoint", **kwargs: Any) -> dict[str, Any]:
        found = own(reference(), save_type, **kwargs)
        return {**found, **variables()} if save_type == "savedmodel" else found

    layer.__dict__["_trackable_children"] = children


def save_alone(layer: keras.layers.Layer) -> None:
    """Undoes `save_along`.

    Private: `Layer._trackable_children` (Keras 3.15, 2.15).
    """
    layer.__dict__.pop("_trackable_children", None)


def call_parameters(layer: Any) -> list[inspect.Parameter]:
    """What a layer's own `call` takes, without `self`; empty where Python cannot tell."""
    try:
        return list(inspect.signature(class_call(layer)).parameters.values())[1:]
    except (TypeError, ValueError):
        return []


def add_to_message(error: Exception, text: str) -> None:
    """Puts text behind an exception's message, in place: its type, cause and traceback stay.

    Notes of Python 3.11 would be lost where Keras raises the message again.

    Private: `OpError._message` (TensorFlow 2.21, 2.15).
    """
    if isinstance(error, tf.errors.OpError):
        error._message = f"{error.message}\n{text}"
    elif not error.args or isinstance(error.args[0], str):
        error.args = (f"{error.args[0] if error.args else ''}\n{text}", *error.args[1:])


def sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """All layers inside, each once, in the order of creation.

    Private: `Layer._flatten_layers` (Keras 3.15, 2.15).
    """
    return list(layer._flatten_layers(include_self=False))


def direct_sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """The layers that a layer holds itself, not those inside them.

    Private: `Layer._flatten_layers` (Keras 3.15, 2.15).
    """
    return list(layer._flatten_layers(include_self=False, recursive=False))


def attributes(*layers: Any) -> Iterator[Any]:
    """What layers hold as attributes, also in lists, tuples and dictionaries at any depth."""
    for layer in layers:
        yield from _flat(list(vars(layer).values()))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _flat(part)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    else:
        yield value


def losses_of_calls(layer: Any) -> int:
    """How many losses a layer and those inside it have added in calls; Keras 3.

    Private: `Layer._losses` (Keras 3.15).
    """
    if not KERAS_3 or not isinstance(layer, keras.layers.Layer):
        return 0
    return sum(len(part._losses) for part in (layer, *sublayers(layer)))


def forget_traces(model: keras.Model) -> None:
    """Drops the compiled train, test and predict functions: they hold the layers as they were."""
    for name in ("train_function", "test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, _Forgotten(model, name))


class _Forgotten:
    """In the place of a function that was dropped: made anew when it is called, as the loop of `fit` may do next."""

    def __init__(self, model: keras.Model, name: str):
        self._model, self._name = weakref.ref(model), name

    def __bool__(self) -> bool:
        return False

    def __call__(self, *args: Any) -> Any:
        model = self._model()
        getattr(model, f"make_{self._name}")(force=True)
        return getattr(model, self._name)(*args)


def jit_compile(model: keras.Model) -> bool:
    """Whether `model.compile` settled on XLA; False for a model that is not compiled.

    Private: `Model._jit_compile` (Keras 2.15).
    """
    if KERAS_3:
        return bool(getattr(model, "compiled", False) and model.jit_compile)
    return bool(getattr(model, "_jit_compile", False))


def set_jit_compile(model: keras.Model, jit_compile: bool) -> None:
    """Compiled as before, but for or without XLA; the next step is traced anew.

    Private: `Model._jit_compile` (Keras 2.15).
    """
    setattr(model, "jit_compile" if KERAS_3 else "_jit_compile", jit_compile)
    forget_traces(model)


def layers_without_xla(model: keras.Model) -> list[str]:
    """Names of the layers that keep Keras from choosing XLA by itself."""
    return [layer.name for layer in sublayers(model) if not getattr(layer, "supports_jit", True)]


@contextlib.contextmanager
def names_anew() -> Iterator[None]:
    """Inside, layers are numbered as in a new process, so that a model that is built again has the same names."""
    kept = global_state.get_global_attribute(_NAMES)
    global_state.set_global_attribute(_NAMES, collections.defaultdict(int))
    try:
        yield
    finally:
        global_state.set_global_attribute(_NAMES, kept)


def strategy_scope(model: keras.layers.Layer) -> contextlib.AbstractContextManager:
    """The tf.distribute scope in which the model's variables were made.

    Private: `Layer._distribute_strategy` (Keras 3.15, 2.15).
    """
    strategy = getattr(model, "_distribute_strategy", None)
    return strategy.scope() if strategy is not None else contextlib.nullcontext()


def graph_calls(model: keras.Model) -> Iterator[tuple[Any, list, list]]:
    """(operation, input tensors, output tensors) of each call in a functional model's graph, inputs first.

    Empty for subclassed models, which have no graph before they run.

    Private: `Functional._nodes_by_depth` (Keras 3.15, 2.15).
    """
    by_depth = getattr(model, "_nodes_by_depth", {})
    for depth in sorted(by_depth, reverse=True):
        for node in by_depth[depth]:
            operation = node.operation if KERAS_3 else node.layer
            if KERAS_3:
                yield operation, list(node.input_tensors), list(node.outputs)
            else:
                yield operation, tf.nest.flatten(node.keras_inputs), tf.nest.flatten(node.outputs)


def functional_of(model: keras.layers.Layer) -> keras.layers.Layer:
    """The functional model inside a Sequential one; the model itself otherwise.

    Private: `Sequential._functional` (Keras 3.15).
    """
    return getattr(model, "_functional", None) or model


def graph_operations(model: keras.Model) -> list[Any]:
    """Operations of a functional model's graph (`x * y`, `ops.exp`) that are no layers and may have a gradient."""
    if not KERAS_3:
        return []
    found = {
        id(operation): operation
        for operation, inputs, outputs in graph_calls(functional_of(model))
        if not isinstance(operation, keras.layers.Layer)
        and any(_is_floating(tensor) for tensor in inputs)
        and any(_is_floating(tensor) for tensor in outputs)
    }
    return list(found.values())


def _is_floating(tensor: Any) -> bool:
    return tf.as_dtype(tensor.dtype).is_floating


@contextlib.contextmanager
def layer_output_hook(hook: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Inside, `hook(layer, output)` replaces the output of every layer called on tensors.

    Train functions are traced anew, with the hook. Those traced inside keep it.
    """
    original_call = keras.layers.Layer.__call__
    original_make = keras.Model.make_train_function
    fresh: set[int] = set()

    def call(layer: keras.layers.Layer, *args: Any, **kwargs: Any) -> Any:
        output = original_call(layer, *args, **kwargs)
        if KERAS_3 and in_symbolic_scope() or not any(map(tf.is_tensor, tf.nest.flatten(output))):
            return output
        return hook(layer, output)

    def make_train_function(model: keras.Model, force: bool = False) -> Any:
        force = force or id(model) not in fresh
        fresh.add(id(model))
        return original_make(model, force=force)

    keras.layers.Layer.__call__ = call
    keras.Model.make_train_function = make_train_function
    try:
        yield
    finally:
        keras.layers.Layer.__call__ = original_call
        keras.Model.make_train_function = original_make


def input_specs(model: keras.layers.Layer) -> Any:
    """What a functional or Sequential model takes, as TensorSpecs in its structure; None of any other.

    Private: `Functional._inputs_struct` (Keras 3.15); `Functional._nested_inputs` (Keras 2.15).
    """
    inputs = getattr(functional_of(model), "_inputs_struct" if KERAS_3 else "_nested_inputs", None)
    if inputs is None:
        return None
    return tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), inputs)
