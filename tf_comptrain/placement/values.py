"""A tensor of a model as several devices have it, and how it comes to others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.codecs import SUPPORTED_DTYPES, Codec, ErrorBound, State, scales_rows

BATCH_AXIS, ROW_AXIS, CHANNEL_AXIS = 0, 1, -1


class Send:
    """Tensors go to other devices as streams, and their gradients come back as they are.

    Args:
      codec: How they are encoded.
      bound: Error bound, which lossless codecs do not use.
    """

    def __init__(self, codec: Codec, bound: ErrorBound):
        self._codec = codec
        self._bound = bound

    def takes(self, tensor: tf.Tensor) -> bool:
        """Whether a tensor has a codec, and is of a traced function."""
        return tensor.dtype in SUPPORTED_DTYPES and not tf.executing_eagerly()

    def __call__(self, tensor: tf.Tensor, source: str, device: str) -> tf.Tensor:
        """The tensor on a device, by way of a stream from another."""

        @_keras.custom_gradient
        def sent(x: tf.Tensor) -> Any:
            bound = self._bound
            state = State(bound_set=0.0 if bound.relative else bound.value)
            relative = bound.value if bound.relative else 1.0
            with tf.device(source):
                shape = tf.shape(x)
                row_scales = scales_rows(x, self._codec, bound)
                _, stream, _ = self._codec.compress(
                    x, tf.constant(state), relative, False, bound.relative_to, row_scales
                )
            with tf.device(device):
                restored = self._codec.decompress(stream, shape, x.dtype, tf.zeros((), x.dtype))
            restored.set_shape(x.shape)
            return restored, lambda dy: dy

        made = sent(tensor)
        mask = _keras.mask_of(tensor)
        _keras.set_mask(made, None if mask is None else _moved(mask, device))
        return made


@dataclasses.dataclass(eq=False, frozen=True)
class Value:
    """A tensor, whole or in parts.

    Attributes:
      parts: In order.
      devices: Of each part.
      axis: Along which it is divided; None: it is whole, and in one part.
      bounds: Where each part begins, and where the last one ends.
    """

    parts: tuple[tf.Tensor, ...]
    devices: tuple[str, ...]
    axis: int | None = None
    bounds: tuple[Any, ...] = ()

    @property
    def dtype(self) -> Any:
        return self.parts[0].dtype

    def whole(self, device: str) -> tf.Tensor:
        """All of it on a device."""
        if self.axis is None:
            return _moved(self.parts[0], device)
        with tf.device(device):
            return _with_mask(lambda *parts: tf.concat(parts, self.axis), self.parts, self.axis)

    def between(self, start: int, stop: int, axis: int, device: str) -> tf.Tensor:
        """What is between two places of an axis, on a device. Only what is asked for goes there."""
        if self.axis != axis:
            source = self.devices[0] if self.axis is None else device
            with tf.device(source):
                return _moved(_slice(self.whole(source), start, stop, axis), device)
        found = []
        for part, source, lo, hi in zip(self.parts, self.devices, self.bounds, self.bounds[1:]):
            first, last = max(start, lo), min(stop, hi)
            if first < last:
                with tf.device(source):
                    found.append(
                        part if (first, last) == (lo, hi) else _slice(part, first - lo, last - lo, axis)
                    )
        if len(found) == 1:
            return _moved(found[0], device)
        with tf.device(device):
            return tf.concat(found, axis)

    def divided(self, axis: int, devices: Sequence[str], bounds: Sequence[Any] = ()) -> Value:
        """The same in parts on devices.

        Args:
          axis: Along which.
          devices: Of the parts.
          bounds: Of the parts; empty: about equal ones.
        """
        if (
            self.axis == axis
            and len(self.parts) == len(devices)
            and (not bounds or self.bounds == tuple(bounds))
        ):
            return Value(tuple(map(_moved, self.parts, devices)), tuple(devices), axis, self.bounds)
        if axis == BATCH_AXIS:
            check_samples(self.size(axis), len(devices), "devices of a stage")
        bounds = tuple(bounds) or shares(self.size(axis), len(devices))
        if axis == BATCH_AXIS and self.axis not in (None, axis) or self.axis == axis == BATCH_AXIS:
            return Value((self.whole(self.devices[0]),), self.devices[:1]).divided(axis, devices, bounds)
        places = zip(bounds, bounds[1:], devices)
        parts = tuple(self.between(start, stop, axis, device) for start, stop, device in places)
        return Value(parts, tuple(devices), axis, bounds)

    def moved(self, devices: Sequence[str], send: Send | None = None) -> Value:
        """The same parts on others; those that change their device by `send`."""
        parts = []
        for part, source, device in zip(self.parts, self.devices, devices):
            if send is None or source == device or not send.takes(part):
                parts.append(_moved(part, device))
            else:
                parts.append(send(part, source, device))
        return dataclasses.replace(self, parts=tuple(parts), devices=tuple(devices))

    def size(self, axis: int) -> Any:
        """Along an axis."""
        if self.axis == axis:
            return self.bounds[-1]
        first = self.parts[0]
        return tf.shape(first)[axis] if first.shape[axis] is None else first.shape[axis]

    def mapped(self, change: Callable[[tf.Tensor], tf.Tensor]) -> Value:
        """Each part changed on its device, and the masks alike."""
        parts = []
        for part, device in zip(self.parts, self.devices):
            with tf.device(device):
                parts.append(_with_mask(change, [part], 0))
        return dataclasses.replace(self, parts=tuple(parts))


def run_parts(call: Callable, args: Any, kwargs: Any, devices: Sequence[str], axis: int | None) -> Any:
    """Calls an operation on each device with its part of every tensor.

    Args:
      call: Calls it.
      args: Arguments, with a `Value` for each tensor, all divided alike.
      kwargs: The same, by name.
      devices: Of the parts.
      axis: Along which they are divided; None: there is one part, the whole.

    Returns:
      What it returns, with a `Value` for each tensor.
    """
    made: list[list[tf.Tensor]] = []
    bounds: tuple[Any, ...] = ()
    structure: Any = None
    for number, device in enumerate(devices):

        def own(value: Any, number: int = number) -> Any:
            return value.parts[number] if isinstance(value, Value) else value

        with tf.device(device):
            structure = call(*tf.nest.map_structure(own, args), **tf.nest.map_structure(own, kwargs))
        made.append(tf.nest.flatten(structure))
    for value in tf.nest.flatten((args, kwargs)):
        bounds = value.bounds if isinstance(value, Value) else bounds
    values = [Value(tuple(parts), tuple(devices), axis, bounds) for parts in zip(*made)]
    return tf.nest.pack_sequence_as(structure, values)


def shares(size: Any, count: int) -> tuple[Any, ...]:
    """Bounds of about equal parts."""
    return tuple(size * k // count for k in range(count + 1))


def check_samples(size: Any, count: int, of: str) -> None:
    """Every part must have one: kernels fail on tensors without any.

    Raises:
      ValueError: There are too few; tf.errors.InvalidArgumentError where that is known only when the step runs.
    """
    rule = (
        f"A batch must have a sample for each of {count} {of}: take a larger batch, and leave out a smaller last one "
        "(`dataset.batch(size, drop_remainder=True)`)."
    )
    if not tf.is_tensor(size) and size < count:
        raise ValueError(f"{rule} Received a batch of {size}.")
    if tf.is_tensor(size):
        tf.debugging.assert_greater_equal(size, count, rule)


def _moved(tensor: tf.Tensor, device: str) -> tf.Tensor:
    """TensorFlow moves a tensor to where it is read; to say so keeps what is made of it there, gradients too."""
    if tensor.device == device:
        return tensor
    with tf.device(device):
        return _with_mask(tf.identity, [tensor], 0)


def _slice(tensor: tf.Tensor, start: Any, stop: Any, axis: int) -> tf.Tensor:
    index: list[Any] = [slice(None)] * tensor.shape.rank
    index[axis] = slice(start, stop)
    return _with_mask(lambda one: one[tuple(index[: one.shape.rank])], [tensor], axis)


def _with_mask(change: Callable[..., tf.Tensor], tensors: Sequence[tf.Tensor], axis: int) -> tf.Tensor:
    """What is made of tensors; of Keras' masks the same, which have the first axes."""
    made = change(*tensors)
    masks = [_keras.mask_of(tensor) for tensor in tensors]
    if all(mask is not None for mask in masks):
        if axis != BATCH_AXIS:
            raise ValueError(
                "Keras' masks cannot be divided by rows or channels: give the stage split='batch'. "
                f"Received a mask of shape {masks[0].shape}."
            )
        _keras.set_mask(made, change(*masks))
    return made
