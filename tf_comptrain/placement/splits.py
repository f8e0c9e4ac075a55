"""Layers divided over devices by output channels, or by rows of images with halos; the results are those of one device.

A part of a layer is the layer's own call where it can be; convolutions and dense layers by channels are called with a
part of their weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.placement.values import CHANNEL_AXIS, ROW_AXIS, Value, run_parts, shares
from tf_comptrain.planner.stages import BATCH, CHANNELS, ROWS

layers = keras.layers

_AXES = {CHANNELS: CHANNEL_AXIS, ROWS: ROW_AXIS}
# Of which each element is that of an input at the same place, or of several inputs there.
_ELEMENTWISE = (
    layers.Add, layers.Average, layers.Dropout, layers.ELU, layers.LeakyReLU, layers.Maximum, layers.Minimum,
    layers.Multiply, layers.ReLU, layers.Rescaling, layers.Subtract,
)  # fmt: skip
_POINTWISE = frozenset(
    ("celu", "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh", "leaky_relu",
     "linear", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softplus", "softsign", "swish", "tanh")
)  # fmt: skip
_POOLINGS = (layers.MaxPooling1D, layers.MaxPooling2D, layers.AveragePooling1D, layers.AveragePooling2D)
_GLOBAL = (
    layers.GlobalAveragePooling1D, layers.GlobalAveragePooling2D, layers.GlobalMaxPooling1D, layers.GlobalMaxPooling2D,
)  # fmt: skip
_CONVOLUTIONS = (layers.Conv1D, layers.Conv2D)


class _OperationCall(NamedTuple):
    """An operation of the graph, and what it is called with: `Value`s for the tensors of the graph.

    Attributes:
      operation: The operation.
      call: Calls it.
      args: Arguments by position.
      kwargs: Arguments by name.
      devices: Of the stage.
      training: What Keras tells the model's layers.
    """

    operation: Any
    call: Callable[..., Any]
    args: Any
    kwargs: Any
    devices: tuple[str, ...]
    training: bool | None

    @property
    def value(self) -> Value:
        """The first tensor."""
        return next(value for value in tf.nest.flatten((self.args, self.kwargs)) if isinstance(value, Value))

    def on_parts(self, axis: int) -> Value:
        """The call on each device with its part of every tensor; the result is divided as they are."""
        first = self.value.divided(axis, self.devices)

        def divided(value: Any) -> Any:
            if not isinstance(value, Value):
                return value
            return first if value is self.value else value.divided(axis, self.devices, first.bounds)

        args, kwargs = tf.nest.map_structure(divided, (self.args, self.kwargs))
        return run_parts(self.call, args, kwargs, self.devices, axis)


def run(place: Any, training: bool | None, operation: Any, call: Callable, args: Any, kwargs: Any) -> Value:
    """Calls an operation of a graph divided over devices.

    Args:
      place: Devices and split of its stage.
      training: What Keras tells the model's layers.
      operation: One for which `check` has found a way.
      call: Calls it.
      args: Arguments, with a `Value` for each tensor of the graph.
      kwargs: The same, by name.
    """
    way = _way(place.split, operation)
    assert way is not None
    return way(_OperationCall(operation, call, args, kwargs, place.devices, training))


def ways_of(operation: Any) -> tuple[str, ...]:
    """The splits for which `check` finds a way, where every device gets a part."""
    return BATCH, *(split for split in (CHANNELS, ROWS) if _way(split, operation) is not None)


def check(calls: Iterable[tuple[Any, Sequence[Any], Sequence[Any]]], places: Mapping[int, Any]) -> None:
    """That each operation can be divided as its stage is.

    Args:
      calls: See `_keras.graph_calls`.
      places: Devices and split of each operation's stage, by its id.

    Raises:
      ValueError: One cannot.
    """
    for operation, inputs, outputs in calls:
        devices, split = places[id(operation)]
        if len(devices) == 1 or not inputs:
            continue
        kind = f"{operation.name!r} ({type(operation).__name__})"
        if split == BATCH:
            if _has_losses(operation):
                raise ValueError(
                    "`stages` must have layers with an activity regularizer on one device: each part would add its "
                    f"own. Received {kind} in a stage of {len(devices)}."
                )
            continue
        if _way(split, operation) is None:
            raise ValueError(
                f"`stages` must have split={split!r} for layers that can be divided so: convolutions, pooling, batch "
                f"normalization, activations and sums{_MORE[split]}, channels last and without dilation, groups or "
                f"regularized activations. Received {kind} in such a stage: give it a stage of its own."
            )
        axis = _AXES[split]
        for tensor in outputs:
            if not isinstance(tensor.shape[axis], int) or tensor.shape[axis] < len(devices):
                raise ValueError(
                    f"`stages` must have split={split!r} where every device gets some of the {split}. Received {kind} "
                    f"with an output of shape {tuple(tensor.shape)} on {len(devices)} devices."
                )


_MORE = {CHANNELS: ", dense layers, and pooling of all positions", ROWS: ", and joins of channels"}


def _way(split: str, operation: Any) -> Callable[[_OperationCall], Value] | None:
    """How an operation is divided; None where it cannot be."""
    if _has_losses(operation):
        return None
    if getattr(operation, "data_format", "channels_last") not in ("channels_last", None):
        return None
    ways = _BY_CHANNELS if split == CHANNELS else _BY_ROWS
    for kinds, suits, way in ways:
        if type(operation) in kinds and suits(operation):
            return way
    return None


def _has_losses(operation: Any) -> bool:
    """Whether its calls add to the loss."""
    inside = _keras.sublayers(operation) if isinstance(operation, layers.Layer) else []
    return any(getattr(one, "activity_regularizer", None) is not None for one in (operation, *inside))


def _always(layer: Any) -> bool:
    return True


def _is_pointwise(layer: Any) -> bool:
    """Whether the activation function treats each element by itself."""
    return layer.activation is None or getattr(layer.activation, "__name__", "") in _POINTWISE


def _is_plain_convolution(layer: Any) -> bool:
    plain = getattr(layer, "groups", 1) == 1 and not getattr(layer, "lora_enabled", False)
    return plain and set(getattr(layer, "dilation_rate", (1,))) == {1} and layer.padding in ("same", "valid")


def _has_plain_weights(layer: Any) -> bool:
    if isinstance(layer, layers.Dense):
        plain = not getattr(layer, "lora_enabled", False) and layer.quantization_mode is None
    else:
        plain = _is_plain_convolution(layer)
    return plain and _is_pointwise(layer)


def _is_plain_normalization(layer: Any) -> bool:
    return not getattr(layer, "renorm", False) and layer.axis in (-1, layer.input_spec.ndim - 1)


def _elementwise_by(axis: int) -> Callable[[_OperationCall], Value]:
    return lambda call: call.on_parts(axis)


def _with_weights_by_channels(call: _OperationCall) -> Value:
    """A convolution or dense layer: all of the input and a part of the weights on each device."""
    layer, value = call.operation, call.value
    bounds = shares(layer.kernel.shape[-1], len(call.devices))
    sizes = [stop - start for start, stop in zip(bounds, bounds[1:])]
    with _keras.layer_scope(layer):
        kernels = _divided(layer.kernel, sizes)
        biases = _divided(layer.bias, sizes)
    parts = []
    for kernel, bias, device in zip(kernels, biases, call.devices):
        x = value.whole(device)
        with tf.device(device):
            y = getattr(layer, "convolution_op", keras.ops.matmul)(tf.cast(x, layer.compute_dtype), kernel)
            y = y if bias is None else y + bias
            parts.append(y if layer.activation is None else layer.activation(y))
    return Value(tuple(parts), call.devices, CHANNEL_AXIS, bounds)


def _divided(weight: Any, sizes: Sequence[int]) -> Sequence[Any]:
    """A weight by output channels, divided where it is; the gradients of a split are joined, and not padded."""
    if weight is None:
        return [None] * len(sizes)
    with tf.device(weight.value.device):
        return tf.split(tf.convert_to_tensor(weight.value), sizes, CHANNEL_AXIS)


def _window_by_rows(call: _OperationCall) -> Value:
    """A convolution or pooling: each device is sent the rows of its neighbours that its windows reach."""
    layer, value = call.operation, call.value
    window, stride = _first(layer, "kernel_size", "pool_size"), _first(layer, "strides")
    height = value.size(ROW_AXIS)
    same = layer.padding == "same"
    rows = -(-height // stride) if same else (height - window) // stride + 1
    before = max((rows - 1) * stride + window - height, 0) // 2 if same else 0
    bounds = shares(rows, len(call.devices))
    fill = value.dtype.min if "Max" in type(layer).__name__ else 0
    parts = []
    for start, stop, device in zip(bounds, bounds[1:], call.devices):
        first, last = start * stride - before, (stop - 1) * stride - before + window
        own = value.between(max(first, 0), min(last, height), ROW_AXIS, device)
        padding = [(0, 0), (max(-first, 0), max(last - height, 0)), *_columns(layer, own, same), (0, 0)]
        with tf.device(device), _attribute(layer, "padding", "valid"):
            parts.append(call.call(tf.pad(own, padding, constant_values=fill) if same else own))
    return Value(tuple(parts), call.devices, ROW_AXIS, bounds)


def _padding_by_rows(call: _OperationCall) -> Value:
    """Rows before the first part and behind the last, and columns beside each."""
    value = call.value.divided(ROW_AXIS, call.devices)
    (top, bottom), columns = call.operation.padding
    parts = []
    for number, (part, device) in enumerate(zip(value.parts, call.devices)):
        rows = (top if number == 0 else 0, bottom if number == len(call.devices) - 1 else 0)
        with tf.device(device):
            parts.append(tf.pad(part, [(0, 0), rows, columns, (0, 0)]))
    bounds = (0, *(bound + top for bound in value.bounds[1:-1]), value.bounds[-1] + top + bottom)
    return Value(tuple(parts), call.devices, ROW_AXIS, bounds)


@contextlib.contextmanager
def _attribute(layer: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, an attribute of a layer is another."""
    before = getattr(layer, name)
    setattr(layer, name, value)
    try:
        yield
    finally:
        setattr(layer, name, before)


def _columns(layer: Any, tensor: tf.Tensor, same: bool) -> list[tuple[int, int]]:
    """What padding "same" puts before and behind the columns."""
    windows = getattr(layer, "kernel_size", None) or layer.pool_size
    found = []
    for axis, (window, stride) in enumerate(zip(windows[1:], layer.strides[1:]), ROW_AXIS + 1):
        width = tensor.shape[axis]
        missing = max((-(-width // stride) - 1) * stride + window - width, 0) if same else 0
        found.append((missing // 2, missing - missing // 2))
    return found


def _first(layer: Any, *names: str) -> int:
    return next(getattr(layer, name) for name in names if getattr(layer, name, None))[0]


def _pooling_has_rows(layer: Any) -> bool:
    """A mean over a window leaves padding out, and knows it only where it pads itself."""
    return layer.padding == "valid" or "Max" in type(layer).__name__


def _normalization_by(axis: int) -> Callable[[_OperationCall], Value]:
    """Batch normalization with the statistics of all parts."""

    def way(call: _OperationCall) -> Value:
        layer, home = call.operation, call.devices[0]
        value = call.value.divided(axis, call.devices)
        with tf.device(home):
            weights = (layer.moving_mean, layer.moving_variance, layer.gamma, layer.beta)
            vectors = [None if weight is None else tf.convert_to_tensor(weight.value) for weight in weights]
        if call.training and layer.trainable:
            vectors[:2] = _moments(value, axis, home)
            with tf.device(home):
                for weight, now in zip(weights[:2], vectors):
                    old = tf.convert_to_tensor(weight.value)
                    weight.assign(old * layer.momentum + now * (1.0 - layer.momentum))
        parts = []
        for part, device, start, stop in zip(value.parts, call.devices, value.bounds, value.bounds[1:]):
            with tf.device(device):
                own: list[Any] = vectors
                if axis == CHANNEL_AXIS:
                    own = [None if vector is None else vector[start:stop] for vector in vectors]
                x = tf.cast(part, own[0].dtype)
                y = tf.nn.batch_normalization(x, own[0], own[1], own[3], own[2], layer.epsilon)
                parts.append(tf.cast(y, layer.compute_dtype))
        return Value(tuple(parts), call.devices, axis, value.bounds)

    return way


def _moments(value: Value, axis: int, home: str) -> list[tf.Tensor]:
    """Mean and variance of each channel over all parts."""
    found = []
    wide = tf.float64 if value.dtype == tf.float64 else tf.float32
    for part, device in zip(value.parts, value.devices):
        with tf.device(device):
            reduced = list(range(part.shape.rank - 1))
            found.append(tf.nn.moments(tf.cast(part, wide), reduced))
    with tf.device(home):
        means, variances = (tf.stack(some) if axis == ROW_AXIS else some for some in zip(*found))
        if axis == CHANNEL_AXIS:
            return [tf.concat(means, 0), tf.concat(variances, 0)]
        shares_of = [hi - lo for lo, hi in zip(value.bounds, value.bounds[1:])]
        weight = tf.constant([[one / sum(shares_of)] for one in shares_of], wide)
        mean = tf.reduce_sum(means * weight, 0)
        variance = tf.reduce_sum((variances + tf.math.squared_difference(means, mean)) * weight, 0)
        return [mean, variance]


def _joins_channels(layer: Any) -> bool:
    return layer.axis in (-1, CHANNEL_AXIS)


# Classes of layers, whether one of them suits, and how it is divided.
_BY_CHANNELS: tuple = (
    (_ELEMENTWISE, _always, _elementwise_by(CHANNEL_AXIS)),
    ((layers.Activation,), _is_pointwise, _elementwise_by(CHANNEL_AXIS)),
    ((*_POOLINGS, *_GLOBAL), _always, _elementwise_by(CHANNEL_AXIS)),
    ((layers.ZeroPadding1D, layers.ZeroPadding2D), _always, _elementwise_by(CHANNEL_AXIS)),
    ((layers.BatchNormalization,), _is_plain_normalization, _normalization_by(CHANNEL_AXIS)),
    ((*_CONVOLUTIONS, layers.Conv3D, layers.Dense), _has_plain_weights, _with_weights_by_channels),
)
_BY_ROWS: tuple = (
    (_ELEMENTWISE, _always, _elementwise_by(ROW_AXIS)),
    ((layers.Activation,), _always, _elementwise_by(ROW_AXIS)),
    ((layers.Concatenate,), _joins_channels, _elementwise_by(ROW_AXIS)),
    ((layers.BatchNormalization,), _is_plain_normalization, _normalization_by(ROW_AXIS)),
    ((*_CONVOLUTIONS, layers.DepthwiseConv2D), _is_plain_convolution, _window_by_rows),
    (_POOLINGS, _pooling_has_rows, _window_by_rows),
    ((layers.ZeroPadding2D,), _always, _padding_by_rows),
)
