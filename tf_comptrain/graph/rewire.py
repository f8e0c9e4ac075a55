"""Rewires a traced step: what is held leaves the forward pass as a stream, and comes back when its reader's gradient is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph import sensitivity
from tf_comptrain.graph.cut import Choice, base_of, choose, element_count, is_free, is_small, plain_bytes
from tf_comptrain.graph.order import Order
from tf_comptrain.graph.reads import GradientOperations, Read, is_elementwise


class Stream(Protocol):
    """A tensor in its held form."""

    def restore(self, gate: tf.Tensor) -> tf.Tensor: ...

    def mask_gradient(self, dy: tf.Tensor) -> tf.Tensor: ...


class Streams(Protocol):
    """Where and how tensors are held."""

    def held_bytes(self, tensor: tf.Tensor) -> int:
        """What it will take."""

    def hold(self, tensor: tf.Tensor, kind: str, mask: bool) -> tuple[tf.Tensor, Stream] | None:
        """The tensor passed through, and its stream; None where it stays as it is."""


class Crossing(NamedTuple):
    """A tensor that crosses from the forward to the backward pass, and how it is held."""

    tensor: tf.Tensor
    storage: str
    note: str


# Limits of the range in which an activation hands the gradient on, by the type of its gradient operation.
_LIMITS = {"ReluGrad": (0.0, float("inf")), "LeakyReluGrad": (0.0, float("inf")), "Relu6Grad": (0.0, 6.0)}


def rewire(backward: _keras.BackwardPass, streams: Streams) -> dict[str, tf.Tensor]:
    """Rewires one backward pass and the forward pass before it.

    Args:
      backward: The pass, as the tape has just made it.
      streams: Where and how tensors are held.

    Returns:
      By name of a gradient that has been replaced: what stands in for it.
    """
    return _Rewiring(backward, streams).run()


class _Rewiring:
    def __init__(self, backward: _keras.BackwardPass, streams: Streams):
        self.backward = backward
        self.graph = backward.graph
        self.streams = streams
        self.gradients = GradientOperations(backward)
        self.order = Order(self.gradients)
        self.replaced: dict[str, tf.Tensor] = {}
        self._held: dict = {}
        self._restored: dict = {}
        self._late: set = set()  # what is not made before its gate is there

    def run(self) -> dict[str, tf.Tensor]:
        signs = [read for read in self.gradients.reads if read.need == sensitivity.SIGN]
        values = [read for read in self.gradients.reads if read.need not in (sensitivity.SIGN, sensitivity.WINDOW)]
        self.choice: Choice = choose(values, self.streams.held_bytes)
        self.masked = {base_of(read.tensor).ref() for read in signs}
        waits: dict = {}
        for read in values:
            tensor = self._restore(read.tensor, read.gate)
            if tensor is not read.tensor:
                _keras.set_input(read.op, read.index, tensor)
                waits.setdefault(read.gate.ref(), []).append(read)
        if not self.backward.recorded:
            for read in signs:
                self._mask(read)
        for gate, readers in waits.items():
            self._order_readers(gate.deref(), readers)
        return self.replaced

    def _restore(self, tensor: tf.Tensor, gate: tf.Tensor) -> tf.Tensor:
        """The tensor as the backward pass has it, once the gate is there; the tensor itself where it is kept."""
        key = (tensor.ref(), gate.ref())
        if key not in self._restored:
            self._restored[key] = self._made_again(tensor, gate)
        return self._restored[key]

    def _made_again(self, tensor: tf.Tensor, gate: tf.Tensor) -> tf.Tensor:
        base = base_of(tensor)
        if base is not tensor:
            again = self._restore(base, gate)
            return tensor if again is base else again
        if is_free(tensor):
            return tensor
        if tensor.ref() in self.choice.saved:
            stream = self._stream(tensor)
            if stream is None:
                return tensor
            restored = stream.restore(gate)
            self._late.add(restored.ref())
            return restored
        operands = [self._restore(operand, gate) for operand in tensor.op.inputs]
        if is_small(tensor) and all(again is operand for again, operand in zip(operands, tensor.op.inputs)):
            return tensor
        with tf.device(tensor.op.device):
            outputs = _keras.run_again(tensor.op, [self._late_one(o, gate) for o in operands], "rebuilt")
        if not any(operand.ref() in self._late for operand in outputs[0].op.inputs):
            _keras.wait_for(outputs[0].op, [gate.op])
        self._late.update(output.ref() for output in outputs)
        for output, again in zip(tensor.op.outputs, outputs):
            self._restored[output.ref(), gate.ref()] = again
        return outputs[tensor.value_index]

    def _late_one(self, operand: tf.Tensor, gate: tf.Tensor) -> tf.Tensor:
        """An operand of what is made again, not before the gate is there.

        TensorFlow's optimizer multiplies small tensors with each other before they meet the large one, and could
        do so in the forward pass.
        """
        if operand.ref() in self._late or is_free(operand):
            return operand
        key = (operand.ref(), gate.ref(), "late")
        if key not in self._restored:
            with tf.device(operand.op.device), tf.control_dependencies([gate.op]):
                self._restored[key] = tf.identity(operand, name="late")
            self._late.add(self._restored[key].ref())
        return self._restored[key]

    def _stream(self, tensor: tf.Tensor) -> Stream | None:
        """Holds the tensor, once, and lets the forward pass read it behind that."""
        if tensor.ref() in self._held:
            return self._held[tensor.ref()]
        if tensor.ref() in self.choice.exact:
            self._held[tensor.ref()] = None
            return None
        readers = [(op, i) for op in tensor.consumers() for i, operand in enumerate(op.inputs) if operand is tensor]
        held = self.streams.hold(tensor, sensitivity.LINEAR, tensor.ref() in self.masked)
        stream = None
        if held is not None:
            through, stream = held
            for op, index in readers:
                _keras.set_input(op, index, through)
        self._held[tensor.ref()] = stream
        return stream

    def _mask(self, read: Read) -> None:
        """The gradient of a ReLU from one bit per element."""
        op, base = read.op, base_of(read.tensor)
        dy = op.inputs[0]
        stream = self._held.get(base.ref())
        ops = native.ops()
        with tf.device(op.device):
            if stream is not None and stream.carries_mask and op.type == "ReluGrad":
                dx = stream.mask_gradient(dy)
            else:
                readers = [(c, i) for c in base.consumers() for i, t in enumerate(c.inputs) if t is base]
                lower, upper = _LIMITS[op.type]
                through, bits = ops.comptrain_bitmask(base, lower=lower, upper=upper)
                for c, i in readers:
                    _keras.set_input(c, i, through)
                off = op.get_attr("alpha") if op.type == "LeakyReluGrad" else 0.0
                dx = ops.comptrain_bitmask_grad(bits, dy, on=1.0, off=off)
        self._replace(op.outputs[0], dx)

    def _replace(self, old: tf.Tensor, new: tf.Tensor) -> None:
        new.set_shape(old.shape)
        for op in old.consumers():
            for index, operand in enumerate(op.inputs):
                if operand is old:
                    _keras.set_input(op, index, new)
        self.replaced[old.name] = new

    def _order_readers(self, gate: tf.Tensor, readers: Sequence[Read]) -> None:
        """What is restored for one reader of a gradient is freed before more is made of that gradient.

        First the products with restored tensors run, those with the largest first, then its other readers.
        """
        products: dict[str, tuple[int, tf.Operation]] = {}
        for read in readers:
            if not is_elementwise(read.op):
                size, _ = products.get(read.op.name, (0, read.op))
                products[read.op.name] = (size + plain_bytes(read.tensor), read.op)
        in_turn = [op for _, op in sorted(products.values(), key=lambda item: -item[0])]
        for first, second in zip(in_turn, in_turn[1:]):
            self._put(first, second)
        names = {read.op.name for read in readers}
        for op in self.gradients.readers_of(gate):
            if op.name not in names:
                for read in readers:
                    self._put(read.op, op)

    def _put(self, first: tf.Operation, second: tf.Operation) -> None:
        if self.order.put(first, second):
            _keras.wait_for(second, [first])
