"""Every use of Keras' and TensorFlow's internals, for Keras 3 and the legacy lane's Keras 2.

Nothing here decides anything: it answers questions (is this call a training call? which layers
has this model?) and performs the few acts that need private attributes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

import tensorflow as tf
from tensorflow import keras
from tensorflow.python.eager import record
from tensorflow.python.framework import kernels as tf_kernels
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.ops import control_flow_util

KERAS_3 = int(version("keras").split(".")[0]) >= 3

if KERAS_3:
    from keras.src import backend as _backend
    from keras.src import ops as _keras_ops
    from keras.src.applications import convnext, inception_resnet_v2
    from keras.src.backend.common import global_state as _global_state
    from keras.src.backend.common.symbolic_scope import in_symbolic_scope as _in_symbolic_scope
    from keras.src.backend.tensorflow import trainer as _trainer
    from keras.src.callbacks import callback_list as _callback_list
    from keras.src.ops import numpy as _numpy_ops
    from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter as _DatasetAdapter
else:
    from keras.src.engine import base_layer_utils as _base_layer_utils
    from keras.src.mixed_precision import autocast_variable as _autocast_variable

_scopes = threading.local()


@contextlib.contextmanager
def training_scope(training: bool = True) -> Iterator[None]:
    """Says that the calls inside belong to a training step.

    For hand-written loops that call the model without `training=`: Keras then tells layers
    nothing, and instrumented layers run as plain ones. An explicit `training=` wins.

    Example:
      >>> with ct.training_scope(), tf.GradientTape() as tape:
      ...     loss = loss_fn(y, model(x))
    """
    previous = getattr(_scopes, "training", None)
    _scopes.training = training
    try:
        yield
    finally:
        _scopes.training = previous


@contextlib.contextmanager
def plain_scope() -> Iterator[None]:
    """Instrumented layers run as plain Keras inside: the yardstick for measurements."""
    previous = getattr(_scopes, "plain", False)
    _scopes.plain = True
    try:
        yield
    finally:
        _scopes.plain = previous


def why_plain() -> str | None:
    """Why an instrumented layer called now has to run as plain Keras; None when it need not."""
    if getattr(_scopes, "plain", False):
        return "measured as plain Keras"
    if KERAS_3 and _in_symbolic_scope():
        return "shape inference"
    if not _training():
        return "not a training call"
    return device_obstacle()


def device_obstacle() -> str | None:
    """What about the device or the compilation keeps the codec ops from running; None if nothing."""
    if control_flow_util.GraphOrParentsInXlaContext(tf_ops.get_default_graph()):
        return "compiled with XLA (jit_compile=True), for which the codec ops have no lowering"
    if tf.config.list_logical_devices("GPU"):
        return "on a GPU, for which the codec ops have no kernel"
    return None


def kernel_devices(op: str) -> list[str]:
    """Device types that have a kernel for an op, such as "CPU", "GPU" or "XLA_CPU_JIT"."""
    return sorted({kernel.device_type for kernel in tf_kernels.get_registered_kernels_for_op(op).kernel})


def _training() -> bool:
    if KERAS_3:
        context = _global_state.get_global_attribute("current_call_ctx")
        training = getattr(context, "training", None)
    else:
        context = _base_layer_utils.call_context()
        training = context.training if context.in_call else None
    if training is None:
        training = getattr(_scopes, "training", None)
    return bool(training)


def quiet_tape() -> contextlib.AbstractContextManager:
    """Keeps the eager tape from holding what runs inside; a graph's tape holds no memory."""
    return record.stop_recording() if tf.executing_eagerly() else contextlib.nullcontext()


@contextlib.contextmanager
def layer_scope(layer: keras.layers.Layer) -> Iterator[None]:
    """The dtype scope in which Keras runs `layer.call`; the backward pass runs outside of it."""
    if layer.compute_dtype == layer.dtype:
        yield
    elif KERAS_3:
        with _backend.AutocastScope(layer.compute_dtype):
            yield
    else:
        with _autocast_variable.enable_auto_cast_variables(layer._compute_dtype_object):
            yield


def random_states(layer: keras.layers.Layer) -> list[tuple[Any, tf.Tensor]] | None:
    """(seed variable, its value now) of every random number generator inside a layer."""
    if not KERAS_3:
        return None
    generators = [
        generator
        for part in layer._flatten_layers(include_self=True)
        for generator in getattr(part, "_seed_generators", ())
    ]
    return [(generator.state, tf.identity(generator.state.value)) for generator in generators]


@contextlib.contextmanager
def replay_scope(states: list[tuple[Any, tf.Tensor]] | None) -> Iterator[None]:
    """Inside, layers draw the random numbers they drew from `states` on, and update no variable.

    None: nothing to replay.
    """
    if states is None:
        yield
        return
    previous = getattr(_scopes, "replaying", False)
    _scopes.replaying = True
    try:
        with keras.StatelessScope(state_mapping=states), training_scope():
            yield
    finally:
        _scopes.replaying = previous


def replaying() -> bool:
    return getattr(_scopes, "replaying", False)


def call_in_training(layer: keras.layers.Layer, x: Any) -> Any:
    """layer(x) as in a training step, also where no outer call says that it is one."""
    return layer(x, training=True) if layer._call_has_training_arg else layer(x)


def class_call(layer: keras.layers.Layer, method: str = "call") -> Callable:
    """A method of the layer's class, which instrumentation does not touch."""
    return getattr(type(layer), method)


def set_call(layer: keras.layers.Layer, call: Callable, method: str = "call") -> None:
    """Overrides a method for one layer instance, past Keras' attribute tracking."""
    layer.__dict__[method] = call


def reset_call(layer: keras.layers.Layer, method: str = "call") -> None:
    layer.__dict__.pop(method, None)


def has_own_call(layer: keras.layers.Layer, method: str = "call") -> bool:
    return method in layer.__dict__


def sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    """All layers inside, each once, in the order of creation."""
    return list(layer._flatten_layers(include_self=False))


def direct_sublayers(layer: keras.layers.Layer) -> list[keras.layers.Layer]:
    return list(layer._flatten_layers(include_self=False, recursive=False))


def forget_traces(model: keras.Model) -> None:
    """Drops the compiled train, test and predict functions: they hold the layers as they were."""
    model.train_function = None
    model.test_function = None
    model.predict_function = None


def jit_compile(model: keras.Model) -> bool:
    """Whether `model.compile` settled on XLA; False for a model that is not compiled."""
    if KERAS_3:
        return bool(getattr(model, "compiled", False) and model.jit_compile)
    return bool(getattr(model, "_jit_compile", False))


def strategy_scope(model: keras.layers.Layer) -> contextlib.AbstractContextManager:
    """The tf.distribute scope in which the model's variables were made."""
    strategy = getattr(model, "_distribute_strategy", None)
    return strategy.scope() if strategy is not None else contextlib.nullcontext()


def graph_calls(model: keras.Model) -> Iterator[tuple[Any, list, list]]:
    """(operation, input tensors, output tensors) of each call in a functional model's graph.

    Empty for subclassed models, which have no graph before they run.
    """
    for nodes in getattr(model, "_nodes_by_depth", {}).values():
        for node in nodes:
            operation = node.operation if KERAS_3 else node.layer
            if KERAS_3:
                yield operation, list(node.input_tensors), list(node.outputs)
            else:
                yield operation, tf.nest.flatten(node.keras_inputs), tf.nest.flatten(node.outputs)


def all_graph_calls(model: keras.layers.Layer) -> Iterator[tuple[Any, list, list]]:
    """`graph_calls` of a functional model and of those nested in it."""
    yield from graph_calls(functional_of(model))
    for child in sublayers(model):
        if child is not functional_of(model):
            yield from graph_calls(child)


def functional_of(model: keras.layers.Layer) -> keras.layers.Layer:
    """The functional model inside a Sequential one; the model itself otherwise."""
    return getattr(model, "_functional", None) or model


def passive_operations() -> tuple[type, ...]:
    """Functional-graph operations (`x + y`, `ops.reshape`) whose gradient reads no tensor's values."""
    if not KERAS_3:
        return ()
    names = (
        "Add", "Subtract", "Negative", "Concatenate", "Stack", "Reshape", "Transpose", "Ravel",
        "Squeeze", "ExpandDims", "Pad", "Mean", "Sum", "GetItem", "Split", "Moveaxis", "Swapaxes",
    )  # fmt: skip
    return tuple(getattr(_numpy_ops, name) for name in names if hasattr(_numpy_ops, name)) + (
        _keras_ops.core.Cast,
    )


def input_count(layer: keras.layers.Layer) -> int | None:
    """How many tensors a layer takes in the functional graph it is part of; None outside of one."""
    nodes = layer._inbound_nodes
    if not nodes:
        return None
    return len(nodes[0].input_tensors if KERAS_3 else tf.nest.flatten(nodes[0].keras_inputs))


def feeds_a_layer(layer: keras.layers.Layer) -> bool:
    """Whether another layer of a functional model reads the layer's output."""
    return bool(layer._outbound_nodes)


def application_layers(*names: str) -> list[type]:
    """Layer classes of those names that keras.applications defines for its own models."""
    modules = (convnext, inception_resnet_v2) if KERAS_3 else ()
    return [getattr(module, name) for module in modules for name in names if hasattr(module, name)]


def batch_norm_extras(layer: keras.layers.Layer) -> str | None:
    """What a BatchNormalization layer does beyond the plain form; None if nothing."""
    if getattr(layer, "synchronized", False):
        return "synchronized batch statistics"
    if getattr(layer, "renorm", False):
        return "batch renormalization"
    if getattr(layer, "virtual_batch_size", None) or getattr(layer, "adjustment", None):
        return "virtual batches"
    return None


def train_step_runner(model: keras.Model, x: Any, y: Any) -> Callable[[], Any]:
    """A function that runs the model's compiled train step on one batch of tensors."""
    model.make_train_function()
    if KERAS_3:
        return lambda: model.train_function(iter([(x, y)] * model.steps_per_execution))
    batches = iter(tf.data.Dataset.from_tensors((x, y)).repeat())
    return lambda: model.train_function(batches)


def fence_optimizer(model: keras.Model) -> None:
    """Makes the model's train step compute each variable's update after that variable's gradient.

    Parts of an update that read no gradient (momentum * m) otherwise run at the start of the step,
    and take the size of the weights until its end.
    """
    reference = weakref.ref(model)

    def train_step(*args, **kwargs):
        model: Any = reference()
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        if optimizer is not None:
            optimizer.__dict__["update_step"] = functools.partial(_fenced_update_step, weakref.ref(optimizer))
        try:
            return type(model).train_step(model, *args, **kwargs)
        finally:
            if optimizer is not None:
                optimizer.__dict__.pop("update_step", None)

    model.__dict__["train_step"] = train_step


def unfence_optimizer(model: keras.Model) -> None:
    model.__dict__.pop("train_step", None)


def _fenced_update_step(optimizer, gradient, *args, **kwargs):
    optimizer = optimizer()
    wait = getattr(gradient, "values", gradient)
    if not tf.executing_eagerly():
        # Keras joins all gradients in one IdentityN, which the optimized graph drops unless something
        # waits for it; what must be waited for is its input.
        while wait.op.type in ("Identity", "IdentityN"):
            wait = wait.op.inputs[wait.value_index]
    with tf.control_dependencies([wait]):
        return type(optimizer).update_step(optimizer, gradient, *args, **kwargs)


def build_optimizer(model: keras.Model) -> None:
    """Makes the optimizer's slots now, so that they exist before a step is measured."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def all_variables(model: keras.Model) -> list:
    """Weights, optimizer slots, metrics and seeds."""
    optimizer = model.optimizer.variables
    variables = [*model.variables, *(optimizer if KERAS_3 else optimizer())]
    for metric in model.metrics:
        variables += metric.variables
    return list({id(v): v for v in variables}.values())


def trainable_variables(model: keras.Model) -> list:
    """As tf.Variables: what a GradientTape takes in both Keras versions."""
    return [v.value if KERAS_3 else v for v in model.trainable_variables]


def compute_loss(model: keras.Model, x: Any, y: Any) -> tf.Tensor:
    """The training loss of one batch, scaled as the optimizer scales it."""
    prediction = model(x, training=True)
    loss = model.compute_loss(x=x, y=y, y_pred=prediction)
    return model.optimizer.scale_loss(loss) if KERAS_3 else loss


def loss_scale(optimizer: Any) -> float:
    """The factor that mixed precision puts on the loss, and so on every gradient of the backward pass."""
    if KERAS_3:
        return float(optimizer.scale_loss(tf.constant(1.0)))
    return float(getattr(optimizer, "loss_scale", 1.0))


def accumulated_gradient(optimizer: Any, variable: Any) -> tuple[Any, float] | None:
    """The optimizer's momentum slot of a trainable variable, and the factor that makes it

        M_t = g_t + mu M_(t-1):

    SGD keeps -learning_rate * M (Keras 2's SGD too), the Adam family (1 - beta_1) * M. None for
    optimizers that keep no such slot, have none yet, or do not train the variable.
    """
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if isinstance(optimizer, keras.optimizers.SGD):
        slots = getattr(optimizer, "momentums", None)
        rate = float(tf.convert_to_tensor(optimizer.learning_rate))
        factor = 1.0 / rate if rate > 0 else 0.0
    elif isinstance(optimizer, _adam_family()):
        slots = getattr(optimizer, "_momentums", None) or getattr(optimizer, "_m", None)
        factor = 1.0 / (1.0 - float(optimizer.beta_1))
    else:
        return None
    if not slots or not factor:
        return None
    try:
        index = (
            optimizer._get_variable_index(variable)
            if KERAS_3
            else optimizer._index_dict[optimizer._var_key(variable)]
        )
    except KeyError:
        return None
    return slots[index], factor


def _adam_family() -> Any:
    names = ("Adam", "AdamW", "Nadam", "Adamax", "Lamb")
    return tuple(getattr(keras.optimizers, name) for name in names if hasattr(keras.optimizers, name))


def has_schedule(optimizer: Any) -> bool:
    """Whether the learning rate follows a schedule, and so cannot be set."""
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    rate = getattr(optimizer, "_learning_rate", None)
    return isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)


def batching_of(dataset: tf.data.Dataset) -> str | None:
    """The transformation that made batches of a dataset's elements; None if none did."""
    while True:
        name = type(dataset).__name__.lstrip("_")
        if "Batch" in name and "Unbatch" not in name:
            return name
        inputs = dataset._inputs()
        if len(inputs) != 1 or "Unbatch" in name or "FlatMap" in name:
            return None
        dataset = inputs[0]


def follow_cardinality() -> None:
    """From now on `fit` asks a dataset for its number of batches at each epoch, not only at the first.

    An epoch of exactly that many steps ends without a step on no data, which would advance
    `optimizer.iterations`. The progress bar follows too.
    """
    if not KERAS_3:
        raise NotImplementedError("Batch sizes that change from epoch to epoch need Keras 3.")
    if _trainer.TFEpochIterator.__name__ == "_FollowingIterator":
        return

    class _FollowingIterator(_trainer.TFEpochIterator):
        _num_batches: Any

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            _scopes.epochs = weakref.ref(self)

        def refresh(self) -> int | None:
            if isinstance(self.data_adapter, _DatasetAdapter):
                self._num_batches = self.data_adapter.num_batches or self._num_batches
            return self.num_batches

        def _enumerate_iterator(self):
            self.refresh()
            yield from super()._enumerate_iterator()

    class _FollowingProgbar(keras.callbacks.ProgbarLogger):
        def on_epoch_begin(self, epoch, logs=None):
            epochs = _current_epochs()
            if epochs is not None:
                self.target = epochs.refresh()
            super().on_epoch_begin(epoch, logs)

    _trainer.TFEpochIterator = _FollowingIterator
    _callback_list.ProgbarLogger = _FollowingProgbar


def _current_epochs() -> Any:
    found = getattr(_scopes, "epochs", None)
    return found() if found is not None else None


def fitted_dataset() -> tf.data.Dataset | None:
    """In `on_train_begin`: the dataset that `fit` was called with, after `follow_cardinality`."""
    if getattr(_scopes, "fitting", None) is not None:
        return _scopes.fitting
    adapter = getattr(_current_epochs(), "data_adapter", None)
    return adapter._dataset if isinstance(adapter, _DatasetAdapter) else None


@contextlib.contextmanager
def layer_output_hook(hook: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Inside, `hook(layer, output)` replaces the output of every layer called on tensors.

    Train functions are traced anew, with the hook. Those traced inside keep it.
    """
    original_call = keras.layers.Layer.__call__
    original_make = keras.Model.make_train_function
    fresh: set[int] = set()

    def call(layer, *args, **kwargs):
        output = original_call(layer, *args, **kwargs)
        if KERAS_3 and _in_symbolic_scope() or not any(map(tf.is_tensor, tf.nest.flatten(output))):
            return output
        return hook(layer, output)

    def make_train_function(model, force=False):
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


def unsteady_shuffle_of(dataset: tf.data.Dataset) -> str | None:
    """A shuffle that orders samples anew each time the dataset is read, or has no seed; None if none."""
    if "Shuffle" in type(dataset).__name__:
        if getattr(dataset, "_reshuffle_each_iteration", True):
            return "a shuffle that reorders at each iteration"
        if int(getattr(dataset, "_seed", 0)) == 0 and int(getattr(dataset, "_seed2", 0)) == 0:
            return "a shuffle without a seed"
    return next(filter(None, map(unsteady_shuffle_of, dataset._inputs())), None)


def build_for_fit(model: keras.Model, batches: tf.data.Dataset) -> None:
    """Makes every variable of a training now (weights, slots, metrics), and the train function."""
    if not KERAS_3:
        raise NotImplementedError("tf_comptrain.fit needs Keras 3.")
    model._assert_compile_called("fit")
    model._symbolic_build(data_batch=batches.element_spec)
    build_optimizer(model)
    model.make_train_function()


def callback_list(model: keras.Model, callbacks: Any, verbose: int, epochs: int, steps: int) -> Any:
    """Keras' own container, with History and progress bar, as `model.fit` makes it."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return callbacks
    return keras.callbacks.CallbackList(
        callbacks,
        add_history=True,
        add_progbar=verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
        model=model,
    )


def show_steps(callbacks: Any, steps: int) -> None:
    """Sets the length of the progress bar."""
    for callback in callbacks.callbacks:
        if isinstance(callback, keras.callbacks.ProgbarLogger):
            callback.target = steps
            if callback.progbar is not None:
                callback.progbar.target = steps


def epoch_logs(model: keras.Model, logs: Any) -> dict:
    """The metrics over the epoch so far; the last step's logs where a train step makes its own."""
    return dict(model._get_metrics_result_or_logs(logs))


@contextlib.contextmanager
def fitting(dataset: Any) -> Iterator[None]:
    """Inside, `fitted_dataset` answers `dataset`."""
    _scopes.fitting = dataset
    try:
        yield
    finally:
        _scopes.fitting = None


def abandon_buffers(variables: Iterable[Any]) -> None:
    """Makes it safe to assign to variables after an XLA step that failed.

    XLA takes the memory of the variables it updates, and frees it when the step fails, while
    TensorFlow still holds it: to assign would free it again, and crash. One more handle, kept for
    good, prevents that. The values are not looked at.
    """
    for variable in variables:
        handle = (variable.value if isinstance(variable, keras.Variable) else variable).read_value()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
