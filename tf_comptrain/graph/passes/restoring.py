"""What comes back: each reader gets what is restored or made again for it, once its incoming gradient is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.gradient_operations import GradientRead
from tf_comptrain.graph.held.row_squares import shortened, squares_of_rows
from tf_comptrain.graph.held_or_rebuilt import DROPOUT, NORMALIZATION
from tf_comptrain.graph.held_or_rebuilt import operands as made_of
from tf_comptrain.graph.kernels import normalizing
from tf_comptrain.graph.operations import about
from tf_comptrain.graph.order import TopologicalOrder
from tf_comptrain.graph.passes.decision import StepDecision, product_behind
from tf_comptrain.graph.passes.made_again import multiply_transposed, rows_again
from tf_comptrain.graph.passes.needs import Needs
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.passes.streams import HeldStreams
from tf_comptrain.graph.tensors import base_of, behind_views, is_small
from tf_comptrain.storage import KEEP


class Restored(NamedTuple):
    """What readers wait for now.

    Attributes:
      order: Of the gradient operations, with what was made for one reader before all that share it.
      readers: (gradient, its readers that something was restored for), in the order in which they were found.
    """

    order: TopologicalOrder
    readers: tuple[tuple[tf.Tensor, tuple[GradientRead, ...]], ...]


def restore(
    step: TracedStep,
    needs: Needs,
    decision: StepDecision,
    held: HeldStreams,
    late: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    is_lossless: bool = False,
) -> Restored:
    """Lets the readers of values read what is restored, or made again of that.

    Args:
      step: The step.
      needs: What is read.
      decision: How it is held.
      held: The streams.
      late: The engine's: a tensor, once a gradient is there.
      is_lossless: Whether each bit comes back: what runs again is the operation itself.
    """
    maker = _Maker(step, decision, held, late, is_lossless)
    readers: dict[Any, list[GradientRead]] = {}
    whole = {found.read.op.name for found in decision.normalizations}
    for read in sorted(needs.values, key=lambda read: step.gradients.meets(read.op)):
        if read.op.name in whole:
            continue
        if step.gradients.meets(read.op) and not step.backward.xla:
            maker.wait(read.op, read.gate.op)
        tensor = maker.restored(read.tensor, read)
        if tensor is not read.tensor:
            _keras.set_input(read.op, read.number, tensor)
        elif step.backward.xla or not _is_kept(behind_views(tensor), decision):
            continue
        readers.setdefault(read.gate.ref(), []).append(read)
    of_gates = ((gate.deref(), tuple(reads)) for gate, reads in readers.items())
    return Restored(maker.order, tuple(of_gates))


def _is_kept(tensor: tf.Tensor, decision: StepDecision) -> bool:
    """Whether a large tensor is held as it is, and freed when its readers are done."""
    holding = decision.of(tensor)
    return holding is not None and holding.way == KEEP and not is_small(tensor)


class _Maker:
    """Makes tensors for readers, each once for all that share it."""

    def __init__(
        self,
        step: TracedStep,
        decision: StepDecision,
        held: HeldStreams,
        late: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        is_lossless: bool,
    ):
        self.order = TopologicalOrder(step.gradients.operations)
        self._step, self._choice, self._held, self._late = step, decision.chosen.choice, held, late
        self._is_lossless = is_lossless
        # By reference of a tensor and of what its readers share: what they read.
        self._made: dict[tuple, tf.Tensor] = {}
        self._with_product: dict[Any, bool] = {}
        # By reference of what the backward pass has made again: gradient operations that this waits for.
        self._awaited: dict[Any, tuple[tf.Operation, ...]] = {}

    def restored(self, tensor: tf.Tensor, read: GradientRead) -> tf.Tensor:
        """The tensor as the backward pass has it for a reader; itself where it is kept.

        It is made when the first of the readers that share it can run.
        """
        key = self._key(tensor, read)
        made = self._made.get(key)
        if made is None or not self._may_come_before(made, read.op):
            stream = self._held.of(tensor)
            if stream is None:
                made = self._made_again(tensor, read)
            else:
                made = stream.restore(read.awaited)
                if base_of(tensor).op.type == "Softmax" and not stream.is_exact:
                    # The gradient of the scores sums to zero then: their keys' mean would be multiplied with that.
                    made = made / tf.reduce_sum(made, -1, keepdims=True)
                elif (
                    not stream.is_exact and (rows := squares_of_rows(tensor, self._step.is_late)) is not None
                ):
                    made = shortened(made, rows, self._step.backward.xla)
                self._note_late([made], [], read)
            self._made[key] = made
            self._may_come_before(made, read.op)
        return made

    def wait(self, op: tf.Operation, before: tf.Operation) -> None:
        """Has an operation run after another one, where that may be."""
        if self.order.knows(before) and self.order.put(before, op):
            _keras.wait_for(op, [before])

    def _key(self, tensor: tf.Tensor, read: GradientRead) -> tuple:
        """By which readers find what is made for all that share it.

        What products are run again for lives on for a second reader, and so do restored streams. What elementwise
        operations make is made anew.
        """
        is_dear = tensor.ref() in self._choice.saved or self._runs_product(tensor)
        return tensor.ref(), (read.source if is_dear else read.group).ref()

    def _runs_product(self, tensor: tf.Tensor) -> bool:
        """Whether to make a tensor again takes a product of matrices."""
        tensor = base_of(tensor)
        found = self._with_product.get(tensor.ref())
        if found is None:
            is_made = tensor.ref() not in self._choice.saved and not self._choice.is_free(tensor)
            found = is_made and (
                about(tensor.op.type).is_product or any(map(self._runs_product, made_of(tensor)))
            )
            self._with_product[tensor.ref()] = found
        return found

    def _may_come_before(self, made: tf.Tensor, reader: tf.Operation) -> bool:
        """Whether a reader may wait for what something is made after, which then is its order."""
        awaited = (op for op in self._awaited.get(made.ref(), ()) if self.order.knows(op))  # no seed
        return all(self.order.put(before, reader) for before in awaited)

    def _made_again(self, tensor: tf.Tensor, read: GradientRead) -> tf.Tensor:
        base = base_of(tensor)
        if base is not tensor:
            again = self.restored(base, read)
            return tensor if again is base else again
        if self._choice.is_free(tensor) or tensor.ref() in self._choice.saved:  # what is kept
            return tensor
        if tensor.op.type == NORMALIZATION and not self._is_lossless:
            return self._renormalized(tensor.op, read)
        if tensor.op.type == DROPOUT and tensor.op.name not in self._step.again:
            return self._dropped_again(tensor.op, read)
        return self._rebuilt(tensor, read)

    def _rebuilt(self, tensor: tf.Tensor, read: GradientRead) -> tf.Tensor:
        """What the tensor's own operation makes of restored operands."""
        product = product_behind(self._step, self._choice, tensor)
        inputs = (product or tensor.op).inputs
        operands = [self.restored(operand, read) for operand in inputs]
        same = all(again is operand for again, operand in zip(operands, inputs))
        if same and (is_small(tensor) or self._step.is_late(tensor.op)):
            return tensor
        operands = [self._not_before(operand, read) for operand in operands]
        with tf.device(tensor.op.device):
            if not any(read.awaited.op in self._awaited.get(operand.ref(), ()) for operand in operands):
                # No control input of the operation itself: TensorFlow's optimizer fails on a Pow that has one. XLA
                # would take what the forward pass has made of the same operands.
                operands[0] = self._late(operands[0], read.awaited)
            outputs = self._run_again(tensor, product, operands)
        self._note_late(outputs, operands, read)
        for output, again in zip(tensor.op.outputs, outputs):
            self._made[self._key(output, read)] = again
        return outputs[tensor.value_index]

    def _run_again(
        self, tensor: tf.Tensor, product: tf.Operation | None, operands: list[tf.Tensor]
    ) -> Sequence[tf.Tensor]:
        if product is not None:
            again = multiply_transposed(product, *operands)
            again.set_shape(tensor.shape)
            return [again]
        rows, backward = None, self._step.backward
        if not backward.xla:  # whose readings are no copies
            rows = rows_again(tensor.op, operands, self._step.places, backward.start)
        return _keras.run_again(tensor.op, operands, "rebuilt") if rows is None else [rows]

    def _renormalized(self, op: tf.Operation, read: GradientRead) -> tf.Tensor:
        """What a batch normalization makes, by the statistics that it found."""
        x, gamma, beta = (self.restored(operand, read) for operand in list(op.inputs)[:3])
        mean, variance = op.outputs[1], op.outputs[2]
        with tf.device(op.device):
            scale = gamma * normalizing(op, variance)
            offset = beta - mean * scale
            scale, offset = (self._not_before(tf.cast(vector, x.dtype), read) for vector in (scale, offset))
            again = x * scale + offset
        self._note_late([again], [x, scale, offset], read)
        return again

    def _dropped_again(self, op: tf.Operation, read: GradientRead) -> tf.Tensor:
        """What a dropout makes, by the bits of what it left."""
        x, bits = self.restored(op.inputs[0], read), op.outputs[1]
        with tf.device(op.device):
            x = self._not_before(x, read)
            again = native.ops().comptrain_bitmask_grad(bits, x, on=op.get_attr("scale"))
        self._note_late([again], [x], read)
        return again

    def _not_before(self, operand: tf.Tensor, read: GradientRead) -> tf.Tensor:
        """An operand of what is made again, when the gradient that this awaits is there.

        TensorFlow's optimizer multiplies small tensors with each other before they meet a large one, and would
        do so in the forward pass.
        """
        if operand.ref() in self._awaited or self._choice.is_free(operand):
            return operand
        key = (operand.ref(), read.group.ref(), "late")
        if key not in self._made:
            with tf.device(operand.op.device):
                self._made[key] = self._late(operand, read.awaited)
            self._note_late([self._made[key]], [], read)
        return self._made[key]

    def _note_late(
        self, made: Sequence[tf.Tensor], operands: Sequence[tf.Tensor], read: GradientRead
    ) -> None:
        """Notes what the making of something waits for."""
        awaited = {read.awaited.op.name: read.awaited.op}
        for operand in operands:
            awaited.update((op.name, op) for op in self._awaited.get(operand.ref(), ()))
        self._awaited.update((tensor.ref(), tuple(awaited.values())) for tensor in made)
