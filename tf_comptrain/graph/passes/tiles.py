"""What runs tile after tile: decided when a gradient is taken, carried out when all of the step is traced.

What reads something wide later, as a metric does, so runs by tiles too.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras
from tf_comptrain.graph.gradient_operations import names_of_live
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.operations import MATRIX_PRODUCT, SIGN, about
from tf_comptrain.graph.passes.activations import run_in_one_pass
from tf_comptrain.graph.passes.fixed_order import fix_order
from tf_comptrain.graph.replacements import redirect
from tf_comptrain.graph.tensors import behind_views, readers_of
from tf_comptrain.graph.tiles.fits import DROPOUT, MASKED
from tf_comptrain.graph.tiles.loop import run_by_tiles
from tf_comptrain.graph.tiles.region import Scope, find_region
from tf_comptrain.graph.tiles.sizes import KnownSizes
from tf_comptrain.graph.tiles.starts import is_wide
from tf_comptrain.graph.tiles.untiled import InTwoPasses, MuchBetween, Untiled


class TiledParts(NamedTuple):
    """What runs tile after tile.

    Attributes:
      parts: (the product that is wide, types of operations of the backward pass beside it).
      at_once: Names of all operations inside that run with the forward pass: they read what that makes.
      later: By name of an operation of a part of the backward pass alone: the name of the product that is wide.
      again: Names of operations of the forward pass that such a part runs again, where they make something wide.
      exact: By name of such a product: what is held as it is, so that what is made again is the same.
    """

    parts: tuple[tuple[tf.Operation, tuple[str, ...]], ...]
    at_once: frozenset[str]
    later: Mapping[str, str] = types.MappingProxyType({})
    again: frozenset[str] = frozenset()
    exact: Mapping[str, tuple[tf.Tensor, ...]] = types.MappingProxyType({})


def plan_tiles(backward: _keras.BackwardPass, streams: StreamsOfStep) -> TiledParts:
    """Finds what can run by tiles, and has that done at the end of the trace.

    Args:
      backward: A pass that nothing has changed yet.
      streams: Says what is to stay as it is.
    """
    plan = _FoundParts(backward, streams)
    if not backward.recorded:
        early, sizes = backward.graph.get_operations()[: backward.start], plan.tile_sizes
        wide = [op for op in early if is_wide(op, plan.known, sizes) and streams.may_round(op.outputs[0])]
        # A teacher's logits are made beside those of whom it teaches.
        for op in sorted(wide, key=plan.is_frozen):
            plan.add(op)
    return TiledParts(
        tuple(plan.parts), frozenset(plan.at_once), plan.later, frozenset(plan.again), plan.exact
    )


class _FoundParts:
    """The parts that were found so far."""

    def __init__(self, backward: _keras.BackwardPass, streams: StreamsOfStep):
        self.known = KnownSizes()
        self.parts: list[tuple[tf.Operation, tuple[str, ...]]] = []
        self.at_once: set[str] = set()
        self.later: dict[str, str] = {}
        self.again: set[str] = set()
        self.exact: dict[str, tuple[tf.Tensor, ...]] = {}
        self._graph, self._xla, self._streams = backward.graph, backward.xla, streams
        operations = backward.graph.get_operations()
        self._late = {op.name: op for op in backward.operations()}
        early = frozenset(op.name for op in operations[: backward.start])
        self.tile_sizes = streams.tile_sizes
        self._scope = Scope(early, self.tile_sizes, frozenset(self._late.keys() - names_of_live(backward)))

    def is_frozen(self, wide: tf.Operation) -> bool:
        """Whether a product has no gradient: no product of the backward pass reads one of its factors."""
        readers = (op for factor in wide.inputs for op in self._readers_of_views(factor))
        live = self._late.keys() - self._scope.unread
        return not any(op.name in live and about(op.type).is_product for op in readers)

    def _readers_of_views(self, tensor: tf.Tensor) -> Iterator[tf.Operation]:
        for op in behind_views(tensor).consumers():
            yield op
            if about(op.type).is_view:
                yield from op.outputs[0].consumers()

    def add(self, wide: tf.Operation) -> None:
        """Looks for what can run by tiles around a product."""
        try:
            region = find_region(wide, self.known, self._scope)
        except InTwoPasses as found:
            self._add_both(wide, found)
            return
        except MuchBetween:
            return
        except Untiled as reason:
            self._streams.say_whole(wide.outputs[0], str(reason))
            return
        if not self.at_once.isdisjoint(region.inside):
            return
        if late := self._late_of(region.inside):
            self.at_once |= region.inside.keys()
            self._note(wide, (op.type for op in late if region.reads_wide(op)))
            self._run_at_end(wide, lambda: [wide])
        elif region.is_of_one_product and (region.outputs or region.sums):
            # The head of a model that is not trained.
            self._run_at_end(wide, lambda: [wide], warns=False)

    def _add_both(self, wide: tf.Operation, found: InTwoPasses) -> None:
        """Has two parts, one of each pass; that of the backward pass makes again what it reads."""
        late = self._late_of(found.inside)
        if any(about(op.type).need(n) == SIGN for op in late for n, _ in enumerate(op.inputs)):
            return  # what is made again has other signs near zero: bits are held
        if not self.later.keys().isdisjoint(found.inside):
            return
        if found.exact:
            self._note_both(wide, found, lambda: [wide, self._made_again(wide)])
            return
        wide_late = (op for op in late if op.name in found.wide)
        first = next((op for op in wide_late if about(op.type).kind == MATRIX_PRODUCT), None)
        if first is None:
            why = "no product of the backward pass makes its gradient"
            self._streams.say_whole(wide.outputs[0], why, crosses=False)
            return
        try:
            find_region(first, self.known, self._scope)
        except (InTwoPasses, Untiled) as reason:
            self._streams.say_whole(wide.outputs[0], str(reason), crosses=False)
            return
        self._note_both(wide, found, lambda: [wide, first])

    def _note_both(
        self, wide: tf.Operation, found: InTwoPasses, products: Callable[[], Sequence[tf.Operation]]
    ) -> None:
        late = self._late_of(found.inside)
        self.later |= {op.name: wide.name for op in late}
        self.again |= found.wide - self._late.keys()
        self.exact |= {wide.name: found.exact} if found.exact else {}
        self._note(wide, (op.type for op in late))
        self._run_at_end(wide, products, crosses=False)

    def _made_again(self, wide: tf.Operation) -> tf.Operation:
        """The product that is made again in the backward pass.

        Raises:
          Untiled: There is none.
        """
        waiting = [op for op in self._late.values() if self.later.get(op.name) == wide.name]
        seen = {op.name for op in waiting}
        while waiting:
            op = waiting.pop()
            if op.type == wide.type and op.name not in self._late:
                return op
            before = (tensor.op for tensor in op.inputs)
            new = {each.name: each for each in before if each.name not in seen | self._scope.early}
            seen |= new.keys()
            waiting += new.values()
        raise Untiled("it is not made again")

    def _draw_again(self, wide: tf.Operation) -> None:
        """Has gradients of dropouts inside draw their numbers again: bits of all of them would be read whole."""
        for op in list(self._late.values()):
            if self.later.get(op.name) != wide.name or op.type != MASKED or op.inputs[0].op.type != DROPOUT:
                continue
            dropout = op.inputs[0].op
            with _keras.stop_recording(), tf.device(op.device):
                operands = [op.inputs[1], *list(dropout.inputs)[1:]]
                again = _keras.run_again(dropout, operands, "again", shaped=False)[0]
                again.set_shape(op.outputs[0].shape)
            redirect(readers_of(op.outputs[0]), again)
            self._scope = self._scope._replace(unread=self._scope.unread | {op.name})

    def _finish_body(self, tiles: Mapping[Any, tf.Tensor]) -> None:
        """Does with the body of a loop, which is being traced, what is done with the step."""
        graph = tf.compat.v1.get_default_graph()
        if self._streams.runs_in_one_order:
            _keras.when_ordered(graph, fix_order)
        if self._streams.may_run_kernels:
            seeds = [tile for reference, tile in tiles.items() if reference.deref().op.name in self._late]
            _keras.at_end_of_trace(graph, lambda returned: run_in_one_pass(graph, seeds, returned))

    def _late_of(self, inside: Mapping[str, tf.Operation]) -> list[tf.Operation]:
        return [op for name, op in self._late.items() if name in inside]

    def _note(self, wide: tf.Operation, readers: Iterable[str]) -> None:
        self.parts.append((wide, tuple(dict.fromkeys(readers))))

    def _run_at_end(
        self,
        wide: tf.Operation,
        products: Callable[[], Sequence[tf.Operation]],
        crosses: bool = True,
        warns: bool = True,
    ) -> None:
        """Has loops made around products when all of the step is traced; none where one of them has no region."""

        def run(returned: Sequence[tf.Tensor]) -> None:
            try:
                self._draw_again(wide)
                for region in [find_region(op, self.known, self._scope, returned) for op in products()]:
                    run_by_tiles(region, self._xla, self.tile_sizes, self._finish_body)
            except (InTwoPasses, Untiled) as reason:
                if warns:
                    self._streams.say_whole(wide.outputs[0], str(reason), crosses=crosses)

        _keras.at_end_of_trace(self._graph, run)
