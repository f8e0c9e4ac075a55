"""Rewires a traced step: what crosses leaves the forward pass as a stream, and comes back when its reader needs it.

Three fences keep the peak low, as everywhere in this package: the forward pass reads a tensor behind its
compression, nothing is restored before the incoming gradient of its reader is there (the gate), and other
readers of that gradient run after those that something was restored for.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.crossings import Crossing
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.kernels import Use
from tf_comptrain.graph.passes.activations import run_in_one_pass
from tf_comptrain.graph.passes.choice import choose_held
from tf_comptrain.graph.passes.decision import decide
from tf_comptrain.graph.passes.engine import readers_of_gate
from tf_comptrain.graph.passes.equal_results import share_equal
from tf_comptrain.graph.passes.equivalents import (
    compare_signs,
    make_rows_of_identity,
    resize_by_products,
    sum_early,
    sum_in_products,
)
from tf_comptrain.graph.passes.executor import EXECUTOR
from tf_comptrain.graph.passes.fixed_order import fix_order
from tf_comptrain.graph.passes.lists import hold_lists
from tf_comptrain.graph.passes.needs import needs_of
from tf_comptrain.graph.passes.replacing import replace
from tf_comptrain.graph.passes.report import crossings_of, uses_of
from tf_comptrain.graph.passes.restoring import restore
from tf_comptrain.graph.passes.step import traced_step
from tf_comptrain.graph.passes.streams import make_streams
from tf_comptrain.graph.passes.tiles import plan_tiles
from tf_comptrain.graph.passes.xla import XLA
from tf_comptrain.graph.tiles.picks import choose_in_rows


class Result(NamedTuple):
    """What `rewire` did.

    Attributes:
      replaced: By name of a gradient that is no longer made: what stands in for it.
      crossings: Every tensor that crosses, in the order in which the forward pass makes them.
      uses: Of every stream that something is restored from.
    """

    replaced: dict[str, tf.Tensor]
    crossings: tuple[Crossing, ...]
    uses: tuple[Use, ...]


def rewire(backward: _keras.BackwardPass, streams: StreamsOfStep) -> Result:
    """Rewires one backward pass and the forward pass before it.

    Args:
      backward: The pass, as the tape has just made it.
      streams: What is wished for tensors, and what holds them.
    """
    engine = XLA if backward.xla else EXECUTOR
    if not backward.recorded:
        share_equal(backward, streams.wishes_alike)
    lists = hold_lists(backward, streams)  # changes the turns of loops, and not the step's own graph
    if not backward.recorded:
        backward = make_rows_of_identity(backward)
        if backward.xla and not streams.asks_for_bits:
            backward = resize_by_products(backward)
        backward = compare_signs(choose_in_rows(backward, streams.tile_sizes))
        if not streams.asks_for_bits:
            backward = sum_early(sum_in_products(backward))
    tiled = plan_tiles(backward, streams)
    step = traced_step(backward, tiled.at_once, tiled.later, tiled.again, tiled.exact)
    needs = needs_of(step, streams, {held.tensor.ref() for held in lists})
    chosen = choose_held(step, needs, streams)
    decision = decide(step, needs, chosen, streams)
    # From here on the graph changes.
    held = make_streams(step, decision, streams)
    restored = restore(step, needs, decision, held, engine.late, streams.is_lossless)
    fenced: dict[str, tf.Tensor] = {}
    for gate, reads in restored.readers:
        apart = [read for read in reads if read.op.name not in step.later]  # the others run as one loop
        if apart:
            fenced |= engine.order(step, restored.order, readers_of_gate(step, gate, apart))
    if not streams.asks_for_bits:  # TensorFlow's optimizer leaves what waits as it is, and rounds otherwise
        engine.order_sums(step, restored.order)
    if streams.runs_in_one_order:
        # After what updates of weights wait for.
        _keras.at_end_of_trace(
            backward.graph, lambda returned: _keras.when_ordered(backward.graph, fix_order)
        )
    replaced = replace(step, needs, decision, held, fenced)
    engine.finish(step, streams)
    if streams.may_run_kernels:
        _keras.at_end_of_trace(
            backward.graph,
            lambda returned: run_in_one_pass(backward.graph, backward.seeds, returned, streams.may_round),
        )
    crossings = crossings_of(step, needs, decision, held, replaced, tiled, lists)
    return Result(replaced.gradients, crossings, uses_of(decision, held, replaced))
