"""What kind of call this is: training or not, under which scopes and tapes, replayed or not.

Private: `record`, `kernels`, `ops`, `ControlFlowFuncGraph` (TensorFlow 2.21, 2.15); `backend`,
  `global_state`, `in_stateless_scope`, `in_symbolic_scope`, `CallContext` (Keras 3.15); `base_layer_utils`,
  `autocast_variable` (Keras 2.15).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras
from tensorflow.python.eager import record
from tensorflow.python.framework import kernels as tf_kernels
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

from tf_comptrain._keras.tapes import graphs_of_tapes
from tf_comptrain._keras.version import KERAS_3

if KERAS_3:
    from keras.src import backend as _backend
    from keras.src.backend.common import global_state as _global_state
    from keras.src.backend.common.stateless_scope import in_stateless_scope
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope
    from keras.src.backend.tensorflow.random import _cast_seed
    from keras.src.layers.layer import CallContext
else:
    from keras.src.engine import base_layer_utils as _base_layer_utils
    from keras.src.mixed_precision import autocast_variable as _autocast_variable

_scopes = threading.local()
_own_traces: list[None] = []


@contextlib.contextmanager
def _set(name: str, value: bool) -> Iterator[None]:
    """Inside, the scope of that name says `value`; behind it, what it said before."""
    previous = getattr(_scopes, name, None)
    setattr(_scopes, name, value)
    try:
        yield
    finally:
        setattr(_scopes, name, previous)


def training_scope(training: bool = True) -> contextlib.AbstractContextManager[None]:
    """Says that the calls inside belong to a training step.

    For hand-written loops that call the model without `training=True`. What crosses into the backward pass of a
    gradient of weights is held there too. That of a gradient of inputs alone (an attack, an image that is optimized)
    is held where `tape.gradient` is called in the scope; else it may be inference, such as forces or saliency. In the
    scope layers also run by the operations and rules that this package has for them. What layers compute stays as
    Keras has it: without `training=True` dropout is off, and batch normalization uses its moving statistics.

    `training_scope(False)` says of a gradient that it is left as plain Keras has it, and of calls that pass no
    `training=True` that they stay plain, also inside a model's train step.

    Examples:
      >>> with ct.training_scope(), tf.GradientTape() as tape:
      ...     loss = loss_fn(y, model(x))
    """
    return _set("training", training)


def plain_scope() -> contextlib.AbstractContextManager[None]:
    """Instrumented layers run as plain Keras inside: the yardstick for measurements."""
    return _set("plain", True)


def in_plain_scope() -> bool:
    """Whether the code runs inside `plain_scope`."""
    return bool(getattr(_scopes, "plain", None))


def scope_says() -> bool | None:
    """What the innermost `training_scope` says; None outside of one."""
    return getattr(_scopes, "training", None)


@contextlib.contextmanager
def own_trace() -> Iterator[None]:
    """Says that a function traced inside is read, measured or watched over by this package.

    In every thread: TensorFlow traces a strategy's replicas in threads of their own.
    """
    _own_traces.append(None)
    try:
        yield
    finally:
        _own_traces.pop()


def in_own_trace() -> bool:
    """Whether any thread is inside `own_trace`."""
    return bool(_own_traces)


def in_shape_inference() -> bool:
    """Whether Keras asks for shapes alone."""
    return KERAS_3 and bool(in_symbolic_scope())


def branch_inside_tape() -> str | None:
    """That the calls now are in a tf.cond or tf.while_loop which opened after the innermost tape. None: they are not.

    TensorFlow builds the gradient of that from outside, and what a custom gradient reads there (variables,
    streams) it does not find. A step that is in a branch or a loop as a whole takes its gradient there.
    """
    tapes, graph = graphs_of_tapes(), tf_ops.get_default_graph()
    while tapes and graph is not None and graph is not tapes[-1]:
        if isinstance(graph, ControlFlowFuncGraph):
            return "in a branch or loop that the tape is outside of"
        graph = getattr(graph, "outer_graph", None)  # of a tf.function in a branch, say
    return None


def in_vectorized_map() -> bool:
    """Whether what is made now is the body of a tf.vectorized_map, which TensorFlow traces in a scope of this name."""
    graph = None if tf.executing_eagerly() else tf_ops.get_default_graph()
    while graph is not None:
        if any(part.startswith("loop_body") for part in graph.get_name_scope().split("/")):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def kernel_devices(op: str) -> list[str]:
    """Device types that have a kernel for an op, such as "CPU", "GPU" or "XLA_CPU_JIT"."""
    return sorted({kernel.device_type for kernel in tf_kernels.get_registered_kernels_for_op(op).kernel})


def training() -> bool | None:
    """What Keras tells the layers called now: batch statistics and dropout, or not. None: nothing."""
    if KERAS_3:
        return getattr(_global_state.get_global_attribute("current_call_ctx"), "training", None)
    context = _base_layer_utils.call_context()
    return context.training if context.in_call else None


def recording() -> bool:
    """Whether a GradientTape is."""
    return bool(record.could_possibly_record())


def watched(values: Any) -> bool:
    """Whether a GradientTape watches any of the tensors in `values`."""
    tensors = [value for value in tf.nest.flatten(values) if tf.is_tensor(value)]
    return bool(record.should_record_backprop(tensors))


def quiet_tape() -> contextlib.AbstractContextManager:
    """Keeps the eager tape from holding what runs inside; a graph's tape holds no memory."""
    return record.stop_recording() if tf.executing_eagerly() else contextlib.nullcontext()


@contextlib.contextmanager
def call_scope(training: bool | None) -> Iterator[None]:
    """Inside, Keras tells the layers that are called that it is training, or is not; None: what it told before."""
    if not KERAS_3 or training is None:
        yield
        return
    previous = _global_state.get_global_attribute("current_call_ctx")
    context = CallContext(entry_layer=None)
    context.set_value("training", training)
    _global_state.set_global_attribute("current_call_ctx", context)
    try:
        yield
    finally:
        _global_state.set_global_attribute("current_call_ctx", previous)


@contextlib.contextmanager
def layer_scope(layer: Any) -> Iterator[None]:
    """Variables have the dtype that they have in `layer.call`. An operation that is no layer has none of its own.

    Private: `Layer._compute_dtype_object` (Keras 2.15).
    """
    if not isinstance(layer, keras.layers.Layer) or layer.compute_dtype == layer.dtype:
        yield
    elif KERAS_3:
        with _backend.AutocastScope(layer.compute_dtype):
            yield
    else:
        with _autocast_variable.enable_auto_cast_variables(layer._compute_dtype_object):
            yield


def draw_key(layer: keras.layers.Layer) -> tuple[tf.Tensor, tf.Tensor]:
    """(key, counter) of the random numbers that a layer would draw now, which counts as drawing them. Keras 3.

    Private: `_cast_seed` (Keras 3.15).
    """
    seed = _cast_seed(layer.seed_generator.next())
    key_and_counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    return key_and_counter.key, key_and_counter.counter


def values_of(layer: Any) -> list[tuple[Any, tf.Tensor]]:
    """The variables of a layer and of those inside it, and their values now, in their own dtypes.

    An operation that is no layer has none. In Keras 2: empty.

    Private: `Variable._value` (Keras 3.15).
    """
    if not KERAS_3 or not isinstance(layer, keras.layers.Layer):
        return []
    with _backend.AutocastScope(None):
        return [(v, tf.convert_to_tensor(v.value)) for v in layer.variables if v._value is not None]


def in_scope_of_values() -> bool:
    """Whether Keras reads and assigns values in place of variables now."""
    return KERAS_3 and bool(in_stateless_scope())


def scope_of_values(
    values: Sequence[tuple[Any, tf.Tensor]],
    assigned: Callable[[tf.Tensor | None, tf.Tensor], tf.Tensor] | None = None,
) -> contextlib.AbstractContextManager:
    """Inside, variables have these values, and to assign them changes none. In Keras 2: no scope.

    Args:
      values: Variables with their values.
      assigned: Of the value that a floating variable has inside (None where it is not in `values`) and of the one that
        it is assigned: what it has from then on. By default the one that it is assigned.
    """
    if not KERAS_3:
        return contextlib.nullcontext()
    return keras.StatelessScope(values) if assigned is None else _ScopeOfValues(values, assigned)


if KERAS_3:

    class _ScopeOfValues(keras.StatelessScope):
        def __init__(self, values: Any, assigned: Callable):
            super().__init__(values)
            self._assigned = assigned

        def add_update(self, update: Any) -> None:
            variable, value = update
            if value.dtype.is_floating:
                value = self._assigned(self.get_current_value(variable), value)
            super().add_update((variable, value))
