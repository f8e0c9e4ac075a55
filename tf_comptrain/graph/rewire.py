"""Rewires a traced step: what crosses leaves the forward pass as a stream, and comes back when its reader needs it.

Three fences keep the peak low, as everywhere in this package: the forward pass reads a tensor behind its
compression, nothing is restored before the incoming gradient of its reader is there (the gate), and other
readers of that gradient run after those that something was restored for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.cofactors import with_exact_reads
from tf_comptrain.graph.control_flow import IN_LISTS, lists_read
from tf_comptrain.graph.crossings import (
    BY_THE_LAYER,
    NEEDED_AT_ONCE,
    SMALL,
    Crossing,
    Crossings,
    Stream,
    Streams,
    packed,
)
from tf_comptrain.graph.errors import Errors, Made
from tf_comptrain.graph.gathers import rows_again
from tf_comptrain.graph.gradient_operations import GradientOperations, GradientRead
from tf_comptrain.graph.held_or_rebuilt import NORMALIZATION, choose
from tf_comptrain.graph.ingredients import INDICES, WEIGHTS
from tf_comptrain.graph.kernels import (
    NORMALIZATION_GRADIENT,
    KernelGradient,
    kernel_gradients,
    normalizing,
    stored_behind,
)
from tf_comptrain.graph.operations import NORM, SHAPE, SIGN, SIZE, UNBOUNDED, UNKNOWN, about
from tf_comptrain.graph.order import TopologicalOrder
from tf_comptrain.graph.replacements import Replacements, answers_relu, redirect
from tf_comptrain.graph.tensors import base_of, is_small, plain_bytes, readers_of
from tf_comptrain.graph.transposed_products import multiply_transposed, transposed_product
from tf_comptrain.graph.updates import is_short_vector
from tf_comptrain.storage import KEEP

# A need beside those of `operations`: of an operation that takes no incoming gradient, as those of a second run of a
# forward part.
_AGAIN = "again"
_AS_IT_IS = "the backward pass runs %s on it as it is"
_NO_ACTIVATION = {
    0: "made of constants alone",
    WEIGHTS: "made of weights and constants alone",
    INDICES: "made of indices alone",
}


class Use(NamedTuple):
    """What a backward pass makes of a stream.

    Attributes:
      stream: The stream.
      kernels: Gradients of weights that are products with what it holds.
      alone: Nothing else is made of it: an error ends in those gradients.
    """

    stream: Stream
    kernels: tuple[KernelGradient, ...]
    alone: bool


class Result(NamedTuple):
    """What `rewire` did.

    Attributes:
      replaced: By name of a gradient that is no longer made: what stands in for it.
      crossings: Every tensor that crosses, in the order in which the forward pass makes them.
      uses: Of every stream that something is restored from, in no order.
    """

    replaced: dict[str, tf.Tensor]
    crossings: tuple[Crossing, ...]
    uses: tuple[Use, ...]


def rewire(backward: _keras.BackwardPass, streams: Streams) -> Result:
    """Rewires one backward pass and the forward pass before it.

    Args:
      backward: The pass, as the tape has just made it.
      streams: Where and how tensors are held.
    """
    return _Rewiring(backward, streams).run()


class _Rewiring:
    def __init__(self, backward: _keras.BackwardPass, streams: Streams):
        self.backward = backward
        self.streams = streams
        self.gradients = GradientOperations(backward)
        self.order = TopologicalOrder(self.gradients)
        self.crossings = Crossings()
        self.replacements = Replacements(backward, streams, self.crossings, self._is_of_backward_pass)
        self._places = {op.name: place for place, op in enumerate(backward.graph.get_operations())}
        self._streams: dict[Any, Any] = {}
        self._restored: dict = {}
        # By reference of what the backward pass has made again: gradient operations that this waits for.
        self._awaited: dict[Any, tuple[tf.Operation, ...]] = {}

    def run(self) -> Result:
        reads = self.gradients.reads
        if not self.streams.is_lossless:
            reads = with_exact_reads(self.gradients)
        signs = [read for read in reads if read.need == SIGN]
        windows = [read for read in reads if self.replacements.may_read_positions(read)]
        pooled = {read.op.name: read.op for read in windows}
        sizes = [read for read in reads if read.need == SIZE]
        no_values = (SIGN, SIZE)
        values = [r for r in reads if r.need not in no_values and r.op.name not in pooled]
        factors = [
            (op, base_of(tensor))
            for op, tensor in self.gradients.factors
            if not self._is_of_backward_pass(base_of(tensor).op)
        ]
        kept = [tensor for _, tensor in factors]
        masks = {base_of(read.tensor).ref() for read in signs if answers_relu(read)}
        self.masked = set() if self.backward.recorded else masks
        self.choice = choose(
            values,
            kept,
            self.streams.held_bytes,
            self._is_of_backward_pass,
            self.streams.renormalizes,
            whole=[base_of(read.tensor) for read in values if self.replacements.may_read_stream(read)],
            verbatim=self.streams.is_exact,
            signs=[reference.deref() for reference in self.masked],
        )
        self.kernels = self._kernels()
        ends = {(kernel.op.name, kernel.stored) for kernels in self.kernels.values() for kernel in kernels}
        self.errors = Errors(
            [Made(r.tensor, r.need, r.op.type, (r.op.name, r.number) in ends) for r in values]
            + [Made(t, _AGAIN, op.type, False) for op, t in factors],
            self.choice,
        )
        normalizations = [read for read in values if self._reads_stream(read)]
        whole = {read.op.name for read in normalizations}
        readers: dict = {}
        for read in values:
            if read.op.name in whole:
                continue
            tensor = self._restore(read.tensor, read)
            if tensor is not read.tensor:
                _keras.set_input(read.op, read.number, tensor)
                readers.setdefault(read.gate.ref(), []).append(read)
        for tensor in kept:
            if tensor.ref() in self.choice.saved:
                self._stream(tensor)  # which notes it
        for gate, of_gate in readers.items():
            self._order_readers(gate.deref(), of_gate)
        for read in signs:
            base = base_of(read.tensor)
            if not (self._is_of_backward_pass(base.op) or self.choice.is_free(base)):
                self.replacements.mask(read, self._streams.get(base.ref()))
        for read in sizes:
            self.replacements.blank(read)
        for read in normalizations:
            stored: Any = stored_behind(read.tensor, self.choice.saved)
            self.replacements.normalize(read, stored, self._stream(stored))
        for op in pooled.values():
            self.replacements.pool(op)
        for tensor, types, size in lists_read(reads, self._is_of_backward_pass):
            self.crossings.note(tensor, KEEP, types, IN_LISTS, sample_bytes=size)
        uses = (
            Use(stream, tuple(map(self._as_it_is_now, self.kernels.get(ref, ()))), self._ends(ref))
            for ref, stream in self._streams.items()
            if stream is not None
        )
        in_order = self.crossings.in_order(lambda op: self._places.get(op.name, 0))
        return Result(self.replacements.replaced, in_order, tuple(uses))

    def _kernels(self) -> dict[Any, list[KernelGradient]]:
        """By reference of a held tensor: the gradients of weights that read it, and not something made of it."""
        found: dict[Any, list[KernelGradient]] = {}
        # Of a gradient that another gradient is taken of, more is made than an update of weights.
        for kernel in [] if self.backward.recorded else kernel_gradients(self.backward, self.gradients):
            stored = stored_behind(kernel.op.inputs[kernel.stored], self.choice.saved)
            if stored is not None:
                found.setdefault(stored.ref(), []).append(kernel)
        return found

    def _ends(self, reference: Any) -> bool:
        """Whether an error of a held tensor ends in the gradients of weights; gamma's answers for its normalization."""
        has_gamma = any(
            kernel.op.type == NORMALIZATION_GRADIENT for kernel in self.kernels.get(reference, ())
        )
        return self.errors.travelling(reference) <= ({NORM} if has_gamma else set())

    def _as_it_is_now(self, kernel: KernelGradient) -> KernelGradient:
        gradient = self.replacements.replaced.get(kernel.gradient.name, kernel.gradient)
        return kernel._replace(gradient=gradient, moved=self.replacements.moved.get(kernel.op.name))

    def _is_of_backward_pass(self, op: tf.Operation) -> bool:
        return self._places.get(op.name, self.backward.stop) >= self.backward.start

    def _restore(self, tensor: tf.Tensor, read: GradientRead) -> tf.Tensor:
        """The tensor as the backward pass has it for a reader; itself where it is kept.

        It is made when the first of the readers that share it can run.
        """
        shared_by = read.source if tensor.ref() in self.choice.saved else read.group
        key = (tensor.ref(), shared_by.ref())
        made = self._restored.get(key)
        if made is None or not self._may_come_before(made, read.op):
            made = self._restored[key] = self._made_again(tensor, read)
            self._may_come_before(made, read.op)
        return made

    def _may_come_before(self, made: tf.Tensor, reader: tf.Operation) -> bool:
        """Whether a reader may wait for what something is made after, which then is its order."""
        awaited = (op for op in self._awaited.get(made.ref(), ()) if self.order.knows(op))  # no seed
        return all(self.order.put(before, reader) for before in awaited)

    def _made_again(self, tensor: tf.Tensor, read: GradientRead) -> tf.Tensor:
        base = base_of(tensor)
        if base is not tensor:
            again = self._restore(base, read)
            return tensor if again is base else again
        if self.choice.is_free(tensor):
            self._note_constant(tensor, read)
            return tensor
        if tensor.ref() in self.choice.saved:
            stream = self._stream(tensor)
            if stream is None:
                return tensor
            restored = stream.restore(read.awaited)
            self._note_late([restored], [], read)
            return restored
        if tensor.op.type == NORMALIZATION:
            return self._renormalized(tensor.op, read)
        inputs = (self._product_behind(tensor) or tensor.op).inputs
        operands = [self._restore(operand, read) for operand in inputs]
        same = all(again is operand for again, operand in zip(operands, inputs))
        if same and (is_small(tensor) or self._is_of_backward_pass(tensor.op)):
            return tensor
        operands = [self._not_before(operand, read) for operand in operands]
        with tf.device(tensor.op.device):
            if not any(read.awaited.op in self._awaited.get(operand.ref(), ()) for operand in operands):
                # No control input of the operation itself: TensorFlow's optimizer fails on a Pow that has one.
                with tf.control_dependencies([read.awaited.op]):
                    operands[0] = tf.identity(operands[0], name="late")
            outputs = self._run_again(tensor, operands)
        self._note_late(outputs, operands, read)
        for output, again in zip(tensor.op.outputs, outputs):
            self._restored[output.ref(), read.group.ref()] = again
        return outputs[tensor.value_index]

    def _product_behind(self, tensor: tf.Tensor) -> tf.Operation | None:
        """The product to make again in place of a transposition of it; XLA makes one of the two by itself."""
        product = None if self.backward.xla else transposed_product(tensor)
        if product is None or self._is_of_backward_pass(product):
            return None
        return None if product.outputs[0].ref() in self.choice.saved else product

    def _run_again(self, tensor: tf.Tensor, operands: list[tf.Tensor]) -> Sequence[tf.Tensor]:
        if (product := self._product_behind(tensor)) is not None:
            again = multiply_transposed(product, *operands)
            again.set_shape(tensor.shape)
            return [again]
        rows = None
        if not self.backward.xla:  # whose readings are no copies
            rows = rows_again(tensor.op, operands, self._places, self.backward.start)
        return _keras.run_again(tensor.op, operands, "rebuilt") if rows is None else [rows]

    def _note_constant(self, tensor: tf.Tensor, read: GradientRead) -> None:
        """Notes what the forward pass makes of constants and sizes alone, such as an attention's mask."""
        if about(tensor.op.type).is_free or self._is_of_backward_pass(tensor.op) or is_small(tensor):
            return
        if tensor not in self.crossings:
            self.crossings.note(tensor, KEEP, (read.op.type,), _NO_ACTIVATION[0])

    def _note_late(
        self, made: Sequence[tf.Tensor], operands: Sequence[tf.Tensor], read: GradientRead
    ) -> None:
        """Notes what the making of something waits for."""
        awaited = {read.awaited.op.name: read.awaited.op}
        for operand in operands:
            awaited.update((op.name, op) for op in self._awaited.get(operand.ref(), ()))
        self._awaited.update((tensor.ref(), tuple(awaited.values())) for tensor in made)

    def _renormalized(self, op: tf.Operation, read: GradientRead) -> tf.Tensor:
        """What a batch normalization makes, by the statistics that it found."""
        x, gamma, beta = (self._restore(operand, read) for operand in list(op.inputs)[:3])
        mean, variance = op.outputs[1], op.outputs[2]
        with tf.device(op.device):
            scale = gamma * normalizing(op, variance)
            offset = beta - mean * scale
            scale, offset = (self._not_before(tf.cast(vector, x.dtype), read) for vector in (scale, offset))
            again = x * scale + offset
        self._note_late([again], [x, scale, offset], read)
        return again

    def _not_before(self, operand: tf.Tensor, read: GradientRead) -> tf.Tensor:
        """An operand of what is made again, when the gradient that this awaits is there.

        TensorFlow's optimizer multiplies small tensors with each other before they meet a large one, and would
        do so in the forward pass.
        """
        if operand.ref() in self._awaited or self.choice.is_free(operand):
            return operand
        key = (operand.ref(), read.group.ref(), "late")
        if key not in self._restored:
            gate = read.awaited
            with tf.device(operand.op.device):
                if self.backward.xla and operand.dtype.is_floating:
                    late = native.ops().comptrain_fence([operand, gate])[0]
                else:
                    with tf.control_dependencies([gate.op]):
                        late = tf.identity(operand, name="late")
            self._restored[key] = late
            self._note_late([late], [], read)
        return self._restored[key]

    def _stream(self, tensor: tf.Tensor) -> Stream | None:
        """The tensor's stream, made once; the forward pass reads the tensor behind it. None where it is kept."""
        if any(self.gradients.waits(operand.op) for operand in tensor.op.inputs):
            self._keep_behind(tensor)
            return None
        if tensor.ref() not in self._streams and (layers_own := packed(tensor)) is not None:
            self._streams[tensor.ref()] = None
            self.streams.keep(tensor)
            stands_for, storage, bits = layers_own
            self.crossings.note(
                stands_for, storage, self.errors.readers(tensor), BY_THE_LAYER, bits, held_as=tensor
            )
        if tensor.ref() not in self._streams:
            stream, note, held_as = self.streams.find(tensor), self._why_plain(tensor), tensor
            if stream is None and not note:
                with tf.device(tensor.op.device):
                    readers, held_as = readers_of(tensor), self._early(tensor)
                    through, stream = self.streams.hold(
                        held_as,
                        self.errors.kind(tensor),
                        tensor.ref() in self.masked,
                        self.errors.gain(tensor),
                    )
                    redirect(readers, through)
            if stream is None:
                self.streams.keep(tensor)
            self._streams[tensor.ref()] = stream
            storage = KEEP if stream is None else stream.storage
            self.crossings.note(tensor, storage, self.errors.readers(tensor), note, held_as=held_as)
        return self._streams[tensor.ref()]

    def _early(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor as the forward pass can make it, where TensorFlow's gradient has it wait: 1 / x of a logarithm."""
        if not self.gradients.waits(tensor.op):
            return tensor
        return _keras.run_again(tensor.op, list(tensor.op.inputs), "early")[tensor.value_index]

    def _keep_behind(self, tensor: tf.Tensor) -> None:
        """Notes that what the backward pass makes a tensor of crosses as it is: the tensor itself does not."""
        waiting, seen = [tensor], {tensor.ref()}
        while waiting:
            current = waiting.pop()
            for operand in map(base_of, current.op.inputs):
                if operand.ref() in seen or about(current.op.type).kind == SHAPE:
                    continue
                seen.add(operand.ref())
                if self._is_of_backward_pass(operand.op):
                    waiting.append(operand)
                elif not self.choice.is_free(operand) and operand not in self.crossings:
                    self.streams.keep(operand)
                    note = SMALL if is_small(operand) else _AS_IT_IS % current.op.type
                    self.crossings.note(operand, KEEP, self.errors.readers(tensor), note)

    def _why_plain(self, tensor: tf.Tensor) -> str:
        if is_small(tensor):
            return SMALL
        if self.streams.is_exact(tensor):  # no error of it is
            return NEEDED_AT_ONCE if self._is_needed_at_once(tensor) else self.streams.why_plain(tensor)
        needs, readers = self.errors.needs(tensor), ", ".join(self.errors.readers(tensor))
        if UNKNOWN in needs:
            return f"what an error of it does to the result of {readers} is not known"
        if _AGAIN in needs:
            return _AS_IT_IS % readers
        if UNBOUNDED in needs:
            return "its gradient grows without bound, and an error of it with that"
        if self._is_needed_at_once(tensor):
            return NEEDED_AT_ONCE
        if tensor.ref() in self.choice.exact and tensor.dtype != tf.bool:
            return _NO_ACTIVATION.get(self.choice.made_of(tensor), "its very value is needed")
        return self.streams.why_plain(tensor, self.errors.gain(tensor))

    def _is_needed_at_once(self, tensor: tf.Tensor) -> bool:
        """Whether the forward pass makes next to nothing, and no product, after the tensor: what a loss is made of.

        To hold it would free no memory before it is read again, and the error would be one of every gradient.
        """
        place = self._made_at(tensor.op)
        later = self.backward.graph.get_operations()[place + 1 : self.backward.start]
        room = 1.25 * plain_bytes(tensor)
        for op in later:
            if about(op.type).is_product:
                return False
            room -= sum(plain_bytes(t) for t in op.outputs if t.dtype.is_floating)
            if room < 0:
                return False
        return True

    def _made_at(self, op: tf.Operation) -> int:
        """The place of an operation; of one of the backward pass, that of the last forward tensor it comes from."""
        waiting, seen, last = [op], {op.name}, 0
        while waiting:
            current = waiting.pop()
            if not self._is_of_backward_pass(current):
                last = max(last, self._places[current.name])
                continue
            for before in (tensor.op for tensor in current.inputs):
                if before.name not in seen:
                    seen.add(before.name)
                    waiting.append(before)
        return last

    def _reads_stream(self, read: GradientRead) -> bool:
        """Whether an operation is the gradient of a batch normalization whose input is held as a stream."""
        if not self.replacements.may_read_stream(read):
            return False
        stored = stored_behind(read.tensor, self.choice.saved)
        if stored is None or self.streams.is_exact(stored) or stored.shape[-1] != read.tensor.shape[-1]:
            return False
        return hasattr(self._stream(stored), "batch_norm_gradient")

    def _order_readers(self, gate: tf.Tensor, reads: Sequence[GradientRead]) -> None:
        """What is restored for one reader of a gradient is freed before more is made of that gradient.

        The products with restored tensors run first, those with the largest before the others; then those of the
        gradient's other readers that end in the gradient of a weight; what leads on comes last, since a chain that
        runs ahead of them leaves a gradient behind in each layer.
        """
        products: dict[str, tuple[int, tf.Operation]] = {}
        for read in reads:
            if not about(read.op.type).hands_on:
                size, _ = products.get(read.op.name, (0, read.op))
                products[read.op.name] = (size + plain_bytes(read.tensor), read.op)
        in_turn = [op for _, op in sorted(products.values(), key=lambda item: -item[0])]
        for before, after in zip(in_turn, in_turn[1:]):
            if not self.backward.xla and self.order.put(before, after):
                _keras.wait_for(after, [before])
        first = {read.op.name: read.op for read in reads}
        others = [op for op in self.gradients.readers_of_views(gate) if op.name not in first]
        if self.backward.xla:
            self._fence(gate, in_turn, others)
            return
        free = [op for op in others if not self.gradients.is_joined(op)]
        ending = [op for op in free if self.gradients.ends(op)]
        for op in free:
            if all(map(is_short_vector, op.outputs)):
                continue
            before = list(first.values()) + ([] if op in ending else ending)
            if all(self.order.put(reader, op) for reader in before):
                _keras.wait_for(op, before)

    def _fence(self, gate: tf.Tensor, first: Sequence[tf.Operation], second: Sequence[tf.Operation]) -> None:
        """Lets operations wait for others under XLA, which knows no control dependencies.

        What the first make and what the second read pass through one operation: readers of one of them wait for all.
        """
        second = [op for op in second if all(self.order.put(each, op) for each in first)]
        joined: list[tf.Operation] = []
        for op in first:
            readers = {
                reader.name: reader for each in (*joined, op) for reader, _ in readers_of(each.outputs[0])
            }
            known = [reader for reader in readers.values() if self.order.knows(reader)]
            if all(self.order.put(each, reader) for each in (*joined, op) for reader in known):
                joined.append(op)
        if not (joined and second):
            return
        first = joined
        made = [op.outputs[0] for op in first]
        places_of = [readers_of(tensor) for tensor in made]
        waiting = [
            (op, index, view)
            for op in second
            for index, view in enumerate(op.inputs)
            if self.gradients.behind_views(view) is gate
        ]
        late, *fenced = native.ops().comptrain_fence([gate, *made])
        for op, index, view in waiting:
            _keras.set_input(op, index, self._same_view(view, gate, late))
        for tensor, places, through in zip(made, places_of, fenced):
            redirect(places, through)
            self.replacements.replaced[tensor.name] = through

    def _same_view(self, view: tf.Tensor, gate: tf.Tensor, late: tf.Tensor) -> tf.Tensor:
        """The late tensor in the shape in which a reader has the gate."""
        if view is gate:
            return late
        source, *shape = view.op.inputs
        return _keras.run_again(view.op, [self._same_view(source, gate, late), *shape], "late")[0]
