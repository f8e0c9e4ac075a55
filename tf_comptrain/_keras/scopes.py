"""What kind of call this is: training or not, under which scopes and tapes, replayed or not."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras
from tensorflow.python.eager import record
from tensorflow.python.framework import kernels as tf_kernels
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

from tf_comptrain._keras.gradients import custom_gradient
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

    For hand-written loops that call the model without `training=True`. What crosses into the backward pass is
    held there too; in the scope layers also run by the operations and rules that this package has for them. What
    layers compute stays as Keras has it: without `training=True` dropout is off, and batch normalization uses its
    moving statistics.

    `training_scope(False)` says of a gradient that it is left as plain Keras has it, and of calls that pass no
    `training=True` that they stay plain, also inside a model's train step.

    Example:
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


def in_step() -> bool:
    """Whether a gradient of the calls now will be wanted.

    Keras' word for it does not last: after a layer that was called with `training=False`, or whose
    default it is, it tells the next ones False too. Hence the scope around a train step.
    """
    told, scope = training(), bool(scope_says())
    return bool(told) or scope and (told is None or recording())


def recording() -> bool:
    """Whether a GradientTape is."""
    return bool(record.could_possibly_record())


def watched(values: Any) -> bool:
    """Whether a GradientTape watches any of the tensors in `values`."""
    tensors = [value for value in tf.nest.flatten(values) if tf.is_tensor(value)]
    return bool(record.should_record_backprop(tensors))


def undense(values: Any) -> str | None:
    """What among `values` is a tensor, but sparse, ragged or a variable: no rule is for it. None: nothing."""
    kinds = {type(value) for value in tf.nest.flatten(values) if tf.is_tensor(value)}
    other = next((kind for kind in kinds if not issubclass(kind, tf.Tensor)), None)
    return None if other is None else f"called on a {other.__name__}"


def quiet_tape() -> contextlib.AbstractContextManager:
    """Keeps the eager tape from holding what runs inside; a graph's tape holds no memory."""
    return record.stop_recording() if tf.executing_eagerly() else contextlib.nullcontext()


@contextlib.contextmanager
def _call_context(training: bool | None) -> Iterator[None]:
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
    """Variables have the dtype that they have in `layer.call`. An operation that is no layer has none of its own."""
    if not isinstance(layer, keras.layers.Layer) or layer.compute_dtype == layer.dtype:
        yield
    elif KERAS_3:
        with _backend.AutocastScope(layer.compute_dtype):
            yield
    else:
        with _autocast_variable.enable_auto_cast_variables(layer._compute_dtype_object):
            yield


def draw_key(layer: keras.layers.Layer) -> tuple[tf.Tensor, tf.Tensor]:
    """(key, counter) of the random numbers that a layer would draw now, which counts as drawing them. Keras 3."""
    seed = _cast_seed(layer.seed_generator.next())
    key_and_counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    return key_and_counter.key, key_and_counter.counter


if KERAS_3:

    class _SecondRun(keras.StatelessScope):
        """Updates nothing; to read a variable that was assigned is to read the variable, as in the first run.

        Keras' own scope would differentiate through the value that was assigned.
        """

        def add_update(self, update: Any) -> None:
            variable, value = update
            if value.dtype.is_floating:
                before = self.get_current_value(variable)
                value = tf.stop_gradient(value) if before is None else _assigned(before, value)
            super().add_update((variable, value))


@custom_gradient
def _assigned(before: tf.Tensor, value: tf.Tensor) -> Any:
    """The value, with a gradient that is the variable's."""
    return tf.identity(value), lambda dy: (dy, None)


class FirstRun:
    """A layer as it is now, for a second run in the backward pass.

    That reads the weights, the statistics and the seeds of the first one, and updates none; in Keras 2 the
    variables as they are then. In a traced graph the layer is not kept alive by it: a graph can outlive it.

    Attributes:
      values: Of all floating variables of the layer and of those inside it, to differentiate by; an operation
        that is no layer has none.
    """

    def __init__(self, layer: Any):
        self._training = training()
        self._stateless = KERAS_3 and in_stateless_scope()
        variables = layer.variables if KERAS_3 and isinstance(layer, keras.layers.Layer) else []
        variables = [variable for variable in variables if variable._value is not None]
        with _backend.AutocastScope(None) if KERAS_3 else contextlib.nullcontext():
            read = [(weakref.ref(v), tf.convert_to_tensor(v.value)) for v in variables]
        self.values = [value for _, value in read if value.dtype.is_floating]
        self._variables = [variable for variable, value in read if value.dtype.is_floating]
        self._seeds = [(variable, value) for variable, value in read if not value.dtype.is_floating]
        self._layer = weakref.ref(layer)
        self._alive = (layer, variables) if tf.executing_eagerly() else None

    @contextlib.contextmanager
    def again(
        self,
        values: Sequence[tf.Tensor],
        gate: tf.Tensor,
        slice_of: FirstRun | None = None,
    ) -> Iterator[None]:
        """Around the second run.

        Args:
          values: Those of the first, to differentiate by.
          gate: The incoming gradient. Random numbers drawn from the same seed before it is there would be
            those of the first run to the graph's optimizer, and stay alive until then.
          slice_of: The run on the whole batch, whose `values` are given: this one is of a slice.
        """
        whole = slice_of or self
        read: list[tuple[Any, tf.Tensor]] = [(v(), value) for v, value in zip(whole._variables, values)]
        if slice_of is not None:  # an earlier slice may have assigned a variable
            read = [(v, _assigned(value, own)) for (v, value), own in zip(read, self.values)]
        read += [(v(), _gated(value, gate)) for v, value in self._seeds]
        with self._mapped(read), _call_context(self._training), layer_scope(self._layer()):
            yield

    def _mapped(self, values: list[tuple[Any, tf.Tensor]]) -> contextlib.AbstractContextManager:
        """The scope in which variables have these values, and to assign them changes none."""
        if not KERAS_3:
            return contextlib.nullcontext()
        # Where the first run was in Keras' scope, what it read after an assignment was what had been assigned.
        return keras.StatelessScope(values) if self._stateless else _SecondRun(values)


def _gated(value: tf.Tensor, gate: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([] if tf.executing_eagerly() else [gate]):
        return tf.identity(value)
