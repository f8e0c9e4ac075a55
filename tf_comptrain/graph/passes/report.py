"""What crosses, as a report says it: from the decision, and from what was put in the place of gradient operations."""

from __future__ import annotations

from collections.abc import Sequence

from tf_comptrain.graph.control_flow import IN_LISTS, STREAMS_IN_LISTS
from tf_comptrain.graph.crossings import BY_THE_LAYER, Crossing, Crossings, batch_of_graph, packed
from tf_comptrain.graph.kernels import KernelGradient, Use
from tf_comptrain.graph.operations import RANDOM, about
from tf_comptrain.graph.passes.decision import StepDecision
from tf_comptrain.graph.passes.lists import HeldList
from tf_comptrain.graph.passes.needs import Needs
from tf_comptrain.graph.passes.replacing import Replaced
from tf_comptrain.graph.passes.step import TracedStep
from tf_comptrain.graph.passes.streams import HeldStreams
from tf_comptrain.graph.passes.tiles import TiledParts
from tf_comptrain.graph.pooling import bits_of
from tf_comptrain.storage import BITMASK, COMPRESS, KEEP, REBUILD, TILE


def crossings_of(
    step: TracedStep,
    needs: Needs,
    decision: StepDecision,
    held: HeldStreams,
    replaced: Replaced,
    tiled: TiledParts,
    lists: Sequence[HeldList] = (),
) -> tuple[Crossing, ...]:
    """Every tensor that crosses, in the order in which the forward pass makes them."""
    crossings = Crossings(batch_of_graph(step.backward.graph))
    for reference, holding in decision.holdings.items():
        tensor = reference.deref()
        if tensor.op.name in step.again and about(tensor.op.type).kind == RANDOM:
            continue  # it is drawn again
        if holding.note == BY_THE_LAYER and (layers_own := packed(tensor)) is not None:
            stands_for, storage, bits = layers_own
            crossings.note(
                stands_for, storage, decision.readers[reference], BY_THE_LAYER, bits, held_as=tensor
            )
        elif holding.way != REBUILD:
            held_as = held.held_as.get(reference, tensor)
            crossings.note(tensor, holding.way, decision.readers[reference], holding.note, held_as=held_as)
    for read, tensor, holding in decision.signs:
        if tensor not in crossings:
            crossings.note(tensor, holding.way, (read.op.type,), holding.note)
    for pooling, gradient, positions in replaced.poolings:
        bits = bits_of(pooling.get_attr("ksize"))
        crossings.note(pooling.outputs[0], BITMASK, (gradient.type,), "", bits, held_as=positions)
    for wide, readers in tiled.parts:
        crossings.note(wide.outputs[0], TILE, readers, "")
    for tensor, readers, sample_bytes in needs.lists:
        crossings.note(tensor, KEEP, readers, IN_LISTS, sample_bytes=sample_bytes)
    for tensor, element, readers, bits, sample_bytes in lists:
        crossings.note(element, COMPRESS, readers, STREAMS_IN_LISTS, bits, tensor, sample_bytes)
    return crossings.in_order(lambda op: step.places.get(op.name, 0))


def uses_of(decision: StepDecision, held: HeldStreams, replaced: Replaced) -> tuple[Use, ...]:
    """What the backward pass makes of each stream, as it is now."""

    def now(kernel: KernelGradient) -> KernelGradient:
        gradient = replaced.gradients.get(kernel.gradient.name, kernel.gradient)
        return kernel._replace(gradient=gradient, moved=replaced.moved.get(kernel.op.name))

    chosen = decision.chosen
    return tuple(
        Use(stream, tuple(map(now, chosen.kernels.get(reference, ()))), chosen.ends(reference))
        for reference, stream in held.streams.items()
    )
