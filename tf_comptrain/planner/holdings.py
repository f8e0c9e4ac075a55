"""How the tensors of a stretch of layers are held in so many bytes, in the least seconds: a knapsack for each stage.

Tensors that rebuild each other form an item; of each item one combination of choices is taken. The relaxation that may
mix two combinations is solved for all stretches at once, by a table over the price of a byte.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tf_comptrain.planner.layers import Layer, LayerChain, Saved
from tf_comptrain.planner.task_graph import KEEP, HoldingOption, OffloadOption, RebuildOption, StreamOption

_PRICES = 512
_MOST_ITEMS = 400
_KNAPSACK_S = 0.5
_MOST_COMBINATIONS = 1 << 14


class ItemHolding(NamedTuple):
    """One way to hold the tensors of an item, for the whole batch.

    Attributes:
      bytes: Held from the forward to the backward pass.
      forward_s, backward_s: Seconds that it adds.
      choices: (tensor, choice) pairs.
    """

    bytes: float
    forward_s: float
    backward_s: float
    choices: tuple[tuple[str, str], ...]

    @property
    def seconds(self) -> float:
        return self.forward_s + self.backward_s


class Holdings:
    """The choices of all layers of a chain, and the least seconds for any stretch of them.

    Args:
      chain: The layers.
      offload: Whether tensors may go to the host.

    Attributes:
      items: For each layer, its items' holdings: the fewest seconds first, none with as many bytes as another of as few
        seconds. A copy that its layer hides takes none: it comes behind what is kept.
    """

    def __init__(self, chain: LayerChain, offload: bool = True):
        self.items = [_items(layer, offload) for layer in chain.layers]
        hulls = [[_hull(item) for item in items] for items in self.items]
        self.prices = _prices(hulls)
        count = len(chain.layers)
        self._seconds, self._bytes = np.zeros((2, len(self.prices), count + 1))
        for place, layer in enumerate(hulls):
            for hull in layer:
                seconds, sizes = _at_prices(hull, self.prices)
                self._seconds[:, place + 1] += seconds
                self._bytes[:, place + 1] += sizes
        np.cumsum(self._seconds, axis=1, out=self._seconds)
        np.cumsum(self._bytes, axis=1, out=self._bytes)

    def least_bytes(self, start: int, ends: NDArray[np.int64]) -> NDArray[np.float64]:
        """The fewest bytes that the layers from `start` up to each of `ends` can be held in."""
        return self._bytes[-1, ends] - self._bytes[-1, start]

    def bound_s(self, start: int, ends: NDArray[np.int64], room: NDArray[np.float64]) -> NDArray[np.float64]:
        """No choice for the layers from `start` up to each of `ends` within `room` bytes adds fewer seconds.

        Infinite where none fits.
        """
        low, high = np.zeros(len(ends), int), np.full(len(ends), len(self.prices) - 1)
        while np.any(low < high):  # the lowest price at which the bytes fit
            middle = (low + high) // 2
            fits = self._bytes[middle, ends] - self._bytes[middle, start] <= room
            low, high = np.where(fits, low, middle + 1), np.where(fits, middle, high)
        sizes = self._bytes[high, ends] - self._bytes[high, start]
        dual = self._seconds[high, ends] - self._seconds[high, start]
        least = self._seconds[0, ends] - self._seconds[0, start]
        with np.errstate(invalid="ignore"):
            dual = np.maximum(dual + self.prices[high] * (sizes - room), least)
            below = np.maximum(high - 1, 0)
            other = self._seconds[below, ends] - self._seconds[below, start]
            other += self.prices[below] * (self._bytes[below, ends] - self._bytes[below, start] - room)
        slack = 1e-9 * np.maximum(sizes, 1.0)
        return np.where(sizes <= room + slack, np.maximum(dual, other), np.inf)

    def choose(self, start: int, end: int, room: float, worth_s: float = 0.0) -> StretchHoldings | None:
        """The best choice found for the layers from `start` up to `end` within `room` bytes; None where none fits.

        Args:
          start, end: Numbers of layers.
          room: Bytes, for the whole batch.
          worth_s: The rounded relaxation is taken where it is at most so many seconds from its bound; otherwise a
            mixed-integer program is solved.
        """
        layers = [layer for layer in range(start, end) for _ in self.items[layer]]
        items = [item for layer in range(start, end) for item in self.items[layer]]
        taken = [item[0] for item in items]
        if sum(h.bytes for h in taken) <= room:
            return StretchHoldings(tuple(zip(layers, taken)), sum(h.seconds for h in taken))
        if sum(item[-1].bytes for item in items) > room:
            return None
        bound = float(self.bound_s(start, np.array([end]), np.array([room]))[0])
        taken = self._rounded(start, end, items, room)
        found = sum(h.seconds for h in taken)
        if found - bound > worth_s and len(items) <= _MOST_ITEMS:
            better, proved = _knapsack(items, room)
            bound = max(bound, proved)
            if sum(h.seconds for h in better) < found:
                taken = better
        return StretchHoldings(tuple(zip(layers, taken)), min(bound, sum(h.seconds for h in taken)))

    def _rounded(
        self, start: int, end: int, items: list[list[ItemHolding]], room: float
    ) -> list[ItemHolding]:
        """What fits at the lowest price, and then what is saved most by the bytes that are left."""
        fits = self._bytes[:, end] - self._bytes[:, start] <= room
        price = self.prices[int(np.argmax(fits))] if fits.any() else np.inf
        taken = [min(item, key=lambda h: (h.seconds + price * h.bytes, h.bytes)) for item in items]
        if sum(h.bytes for h in taken) > room:
            taken = [item[-1] for item in items]
        left = room - sum(h.bytes for h in taken)
        swaps = [
            ((taken[place].seconds - other.seconds) / (other.bytes - taken[place].bytes), place, other)
            for place, item in enumerate(items)
            for other in item
            if other.bytes > taken[place].bytes
        ]
        for _, place, other in sorted(swaps, key=lambda swap: -swap[0]):
            more = other.bytes - taken[place].bytes
            if 0 < more <= left:
                taken[place], left = other, left - more
        return taken


class StretchHoldings(NamedTuple):
    """Holdings of a stretch of layers.

    Attributes:
      taken: (number of the layer, its holding) pairs.
      bound_s: No choice in as many bytes adds fewer seconds.
    """

    taken: tuple[tuple[int, ItemHolding], ...]
    bound_s: float


def _items(layer: Layer, offload: bool) -> list[list[ItemHolding]]:
    groups = _groups(layer)
    copied = sum(s.bytes for s in layer.saved if any(isinstance(o, OffloadOption) for o in s.options))
    return [_combinations(layer, group, copied, offload) for group in groups]


def _groups(layer: Layer) -> list[list[Saved]]:
    """Tensors of a layer that rebuild each other, and so are chosen together."""
    group_of = {saved.name: {saved.name} for saved in layer.saved}
    for saved in layer.saved:
        for option in saved.options:
            for source in getattr(option, "sources", ()):
                joined = group_of[saved.name] | group_of[source]
                for name in joined:
                    group_of[name] = joined
    distinct = {id(group): group for group in group_of.values()}
    return [[saved for saved in layer.saved if saved.name in group] for group in distinct.values()]


def _combinations(layer: Layer, group: list[Saved], copied: int, offload: bool) -> list[ItemHolding]:
    options: list[list[HoldingOption | None]] = [
        [None, *(o for o in saved.options if offload or not isinstance(o, OffloadOption))] for saved in group
    ]
    if np.prod([float(len(some)) for some in options]) > _MOST_COMBINATIONS:
        raise ValueError(
            f"`saved` of layer {layer.name!r} must have at most {_MOST_COMBINATIONS} combinations among tensors that "
            f"rebuild each other: offer fewer options. Received: {len(group)} such tensors."
        )
    found = [_holding(layer, group, some, copied) for some in itertools.product(*options)]
    return _undominated([holding for holding in found if holding is not None])


def _holding(
    layer: Layer, group: list[Saved], options: tuple[HoldingOption | None, ...], copied: int
) -> ItemHolding | None:
    by_name = {saved.name: option for saved, option in zip(group, options)}
    size = forward_s = backward_s = 0.0
    for saved, option in zip(group, options):
        if option is None:
            size += saved.bytes
        elif isinstance(option, StreamOption):
            size += option.bytes
            forward_s += option.encode_s
            backward_s += saved.reads * option.decode_s
        elif isinstance(option, RebuildOption):
            sources = [by_name[name] for name in option.sources]
            if any(
                isinstance(s, RebuildOption) or (isinstance(s, StreamOption) and not s.is_source)
                for s in sources
            ):
                return None
            size += option.held_bytes
            decodes = sum(s.decode_s for s in sources if isinstance(s, StreamOption))
            backward_s += saved.reads * (option.seconds + decodes)
        else:  # the layer's own time covers its copies, each in proportion to its bytes
            share = saved.bytes / copied
            forward_s += option.encode_s + max(option.out_s - share * layer.forward_s, 0.0)
            backward_s += saved.reads * option.decode_s + max(option.in_s - share * layer.backward_s, 0.0)
    choices = tuple((s.name, KEEP if o is None else o.label) for s, o in zip(group, options))
    return ItemHolding(size, forward_s, backward_s, choices)


def _undominated(holdings: list[ItemHolding]) -> list[ItemHolding]:
    """Fewer and fewer bytes for as many seconds or more: of equal seconds the most bytes first, which move nothing."""
    kept: list[ItemHolding] = []
    for holding in sorted(holdings, key=lambda h: (h.seconds, -h.bytes)):
        if not kept or holding.bytes < kept[-1].bytes:
            kept.append(holding)
    return kept


def _hull(holdings: list[ItemHolding]) -> list[ItemHolding]:
    """Those that are best at some price of a byte."""
    hull: list[ItemHolding] = []
    for holding in holdings:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], holding):
            hull.pop()
        hull.append(holding)
    return hull


def _slope(before: ItemHolding, after: ItemHolding) -> float:
    return (after.seconds - before.seconds) / (before.bytes - after.bytes)


def _prices(hulls: list[list[list[ItemHolding]]]) -> NDArray[np.float64]:
    """Seconds per byte, rising: those at which an item changes its holding, or as many of them as the table has."""
    slopes = {_slope(a, b) for layer in hulls for hull in layer for a, b in zip(hull, hull[1:])}
    prices = np.array(sorted({0.0, *slopes}))
    if len(prices) > _PRICES:
        prices = prices[np.unique(np.linspace(0, len(prices) - 1, _PRICES).astype(int))]
    return prices


def _at_prices(
    hull: list[ItemHolding], prices: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(seconds, bytes) of the holding that is best at each price, the smaller one where two are."""
    slopes = [_slope(a, b) for a, b in zip(hull, hull[1:])]
    place = np.searchsorted(slopes, prices, "right") if slopes else np.zeros(len(prices), int)
    return np.array([h.seconds for h in hull])[place], np.array([h.bytes for h in hull])[place]


def _knapsack(items: list[list[ItemHolding]], room: float) -> tuple[list[ItemHolding], float]:
    """(holdings within `room`, seconds below which there are none), by a mixed-integer program."""
    import scipy.optimize  # which takes longer to import than all of this package
    import scipy.sparse

    flat = [(place, holding) for place, item in enumerate(items) for holding in item]
    seconds = np.array([h.seconds for _, h in flat])
    sizes = np.array([h.bytes for _, h in flat])
    owner = np.array([place for place, _ in flat])
    one_each = scipy.sparse.csr_array((np.ones(len(flat)), (owner, np.arange(len(flat)))))
    scale_s, scale = max(seconds.max(), 1e-12), max(room, sizes.max(), 1.0)
    taken, bound = [item[-1] for item in items], 0.0
    for attempt in (room, room * (1 - 1e-5)):  # the solver's tolerance may have put a few bytes too many
        found = scipy.optimize.milp(
            seconds / scale_s,
            integrality=np.ones(len(flat)),
            bounds=scipy.optimize.Bounds(0, 1),
            constraints=[
                scipy.optimize.LinearConstraint(one_each, 1, 1),
                scipy.optimize.LinearConstraint(sizes[None] / scale, -np.inf, attempt / scale),
            ],
            options={"time_limit": _KNAPSACK_S, "mip_rel_gap": 1e-4},
        )
        proved = found.mip_dual_bound
        if attempt == room and proved is not None and np.isfinite(proved):
            bound = float(proved) * scale_s
        if found.x is None:
            break
        best = {place: holding for (place, holding), x in zip(flat, found.x) if x > 0.5}
        chosen = [best.get(place, item[-1]) for place, item in enumerate(items)]
        if sum(h.bytes for h in chosen) <= room:
            return chosen, bound
    return taken, bound
