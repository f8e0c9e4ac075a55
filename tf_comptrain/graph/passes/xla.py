"""The order of operations under XLA, which knows no control dependencies: by fences, which are data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from tf_comptrain import _keras, native
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.operations import CONVOLUTIONAL, KERNEL_GRADIENT, MATRIX_PRODUCT, about
from tf_comptrain.graph.order import TopologicalOrder
from tf_comptrain.graph.passes import executor
from tf_comptrain.graph.passes.engine import EnginePasses, GateReaders, drawn_numbers
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import plain_bytes, readers_of
from tf_comptrain.graph.tiles.fences import fence_sources, moved_again, read_behind_fences
from tf_comptrain.graph.tiles.letters import swapped_product

_KEY = 1  # of their inputs: shape, key, counter, algorithm
_KERNEL = 1  # of a convolution's inputs, and of those of the gradient of its input
_LEAST_TURNED, _LEAST_IN_PARTS = 1 << 16, 16 << 20  # bytes
_DEPTHWISE = "DepthwiseConv2dNativeBackpropFilter"
_GROUPS = 4  # of samples
_CHANNELS, _MOST_GROUPS = 32, 16  # of a group, at least; of one kernel


def late(tensor: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """The tensor, once a gradient is there; what may be a shape, which XLA has to know, stays as it is."""
    if not tensor.dtype.is_floating and (tensor.shape.rank or 0) < 2:
        return executor.late(tensor, gradient)
    return native.ops().comptrain_fence([tensor, gradient])[0]


def order_readers(step: TracedStep, order: TopologicalOrder, readers: GateReaders) -> dict[str, tf.Tensor]:
    """Lets the other readers of a gradient wait for the products with restored tensors.

    What the products make and what the others read pass through one operation: readers of one of them wait for all.

    Returns:
      By name of what a product makes, added up where that makes it smaller: what comes through that operation.
    """
    second = [op for op in readers.others if all(order.put(each, op) for each in readers.products)]
    first = _joined(order, readers.products)
    if not (first and second):
        return {}
    made = [_added_up(op.outputs[0]) for op in first]
    places_of = [readers_of(tensor) for tensor in made]
    waiting = [
        (op, index, view)
        for op in second
        for index, view in enumerate(op.inputs)
        if step.gradients.behind_views(view) is readers.gate
    ]
    gate_late, *fenced = native.ops().comptrain_fence([readers.gate, *made])
    for op, index, view in waiting:
        _keras.set_input(op, index, moved_again(view, readers.gate, gate_late))
    for places, through in zip(places_of, fenced):
        redirect(places, through)
    return {tensor.name: through for tensor, through in zip(made, fenced)}


def _joined(order: TopologicalOrder, products: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Those of the products whose readers may wait for all of them."""
    joined: list[tf.Operation] = []
    for op in products:
        together = (*joined, op)
        if all(order.put(each, reader) for each in together for reader in _known_readers(order, together)):
            joined.append(op)
    return joined


def _known_readers(order: TopologicalOrder, operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    """What reads the first results of operations, or what was made of these since; as far as the order knows it."""
    found: dict[str, tf.Operation] = {}
    waiting, seen = [op.outputs[0] for op in operations], set()
    while waiting:
        for reader, _ in readers_of(waiting.pop()):
            if order.knows(reader):
                found[reader.name] = reader
            elif reader.name not in seen:
                seen.add(reader.name)
                waiting += reader.outputs
    return list(found.values())


def _added_up(product: tf.Tensor) -> tf.Tensor:
    """The sum of the samples' products, where it is all that is read: XLA would keep them all until it updates."""
    readers = [reader for reader, _ in readers_of(product)]
    if len(readers) != 1 or readers[0].type != "Sum":
        return product
    total = readers[0].outputs[0]
    known = product.shape.num_elements(), total.shape.num_elements()
    return total if None not in known and known[1] < known[0] else product


def finish(step: TracedStep, streams: StreamsOfStep) -> None:
    """Spares large factors a transposition; draws random numbers, and on a CPU turns kernels, when they are needed."""
    _swap_factors(step)
    _draw_late(step)
    _keras.at_end_of_trace(step.backward.graph, lambda returned: fence_sources(step.backward.graph))
    if not streams.on_gpu:  # where fences are gone before memory is planned
        _keras.at_end_of_trace(step.backward.graph, lambda returned: read_behind_fences(step.backward.graph))
    if not streams.on_gpu:  # whose libraries take tensors as they are
        _turn_late(step)
        _turn_in_parts(step, streams)


def _swap_factors(step: TracedStep) -> None:
    """Of products of the backward pass; a loop over tiles does so itself."""
    for op in step.backward.operations():
        is_product = about(op.type).kind == MATRIX_PRODUCT and len(op.inputs) == 2
        if is_product and op.name not in step.later and op.name not in step.at_once:
            with tf.device(op.device):
                swapped = swapped_product(op, *op.inputs)
            if swapped is not None:
                redirect(readers_of(op.outputs[0]), swapped)


def _draw_late(step: TracedStep) -> None:
    """Random numbers depend on a seed alone: XLA would draw those of many layers before it runs the first."""
    for op, met in drawn_numbers(step):
        _keras.set_input(op, _KEY, native.ops().comptrain_fence([op.inputs[_KEY], met])[0])


def _turn_late(step: TracedStep) -> None:
    """XLA copies kernels of convolutions in another order of axes, those of all layers before it runs the first."""
    for op in step.backward.graph.get_operations()[: step.backward.stop]:
        if about(op.type).kind != CONVOLUTIONAL or op.name in step.later or op.name in step.at_once:
            continue
        kernel, met = op.inputs[_KERNEL], op.inputs[-1 if op.inputs[0].dtype.is_integer else 0]
        if plain_bytes(kernel) >= _LEAST_TURNED and _of_variable(kernel):
            _keras.set_input(op, _KERNEL, native.ops().comptrain_fence([kernel, met])[0])


def _turn_in_parts(step: TracedStep, streams: StreamsOfStep) -> None:
    """For the gradient of a kernel XLA copies what it reads in another order of axes: less of it at a time.

    Of a depthwise kernel it makes the products of all pairs of channels, and leaves out all but a few: groups of
    channels have fewer pairs. The largest of the others go through it group of samples by group, where sums may be in
    another order.
    """
    spatial = (op for op in step.backward.operations() if _is_of_spatial_kernel(op))
    found = [
        op
        for op in spatial
        if op.name not in step.later and (step.is_late(op.inputs[0].op) or streams.may_round(op.inputs[0]))
    ]
    sizes = {op.name: plain_bytes(op.inputs[0]) for op in found if op.type != _DEPTHWISE}
    largest = max(sizes.values(), default=0)
    for op in found:
        x, _, dy = op.inputs
        if not step.is_late(x.op):
            _keras.set_input(op, 0, native.ops().comptrain_fence([x, dy])[0])  # a batch of images, say
        with tf.device(op.device):
            if op.type == _DEPTHWISE:
                redirect(readers_of(op.outputs[0]), _by_channels(op))
            elif 2 * sizes[op.name] >= largest >= _LEAST_IN_PARTS and not streams.is_lossless:
                redirect(readers_of(op.outputs[0]), _by_samples(op))


def _is_of_spatial_kernel(op: tf.Operation) -> bool:
    """Whether it is the gradient of one; of others it is a product of matrices."""
    if about(op.type).kind != KERNEL_GRADIENT:
        return False
    sizes = op.outputs[0].shape
    return sizes.is_fully_defined() and math.prod(sizes[:-2]) > 1


def _by_samples(op: tf.Operation) -> tf.Tensor:
    """The gradient of a kernel, added up over groups of samples, one after the other."""
    x, sizes, dy = op.inputs
    samples, total = tf.shape(x)[0], None
    for group in range(_GROUPS):
        some = slice(samples * group // _GROUPS, samples * (group + 1) // _GROUPS)
        (made,) = _keras.run_again(op, [x[some], sizes, dy[some]], "group", shaped=False)
        total = made if total is None else total + made
        x, dy, total = native.ops().comptrain_fence([x, dy, total])
    return total


def _by_channels(op: tf.Operation) -> tf.Tensor:
    """The gradient of a depthwise kernel, joined from groups of channels, one after the other."""
    x, _, dy = op.inputs
    *spatial, channels, outputs = op.outputs[0].shape
    size = max(_CHANNELS, -(-channels // _MOST_GROUPS))
    made: list[tf.Tensor] = []
    for first in range(0, channels, size):
        last = min(first + size, channels)
        if made:
            x, dy, _ = native.ops().comptrain_fence([x, dy, made[-1]])
        operands = [
            x[..., first:last],
            [*spatial, last - first, outputs],
            dy[..., first * outputs : last * outputs],
        ]
        made += _keras.run_again(op, [tf.convert_to_tensor(each) for each in operands], "group", shaped=False)
    return tf.concat(made, len(spatial))


def _of_variable(tensor: tf.Tensor) -> bool:
    while tensor.op.type in ("Cast", "Identity"):
        tensor = tensor.op.inputs[0]
    return tensor.op.type == "ReadVariableOp"


# The compiler orders sums by itself.
XLA = EnginePasses(late, order_readers, lambda *unused: None, finish)
