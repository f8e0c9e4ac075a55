"""TensorFlow's best-fit allocator, as arithmetic: what it sets aside for buffers of given sizes.

It follows the rules of `BFCAllocator` with a heap that may grow: requests are rounded up to 256
bytes and get the smallest free chunk that is large enough; a chunk is split where at least half of
it, or 128 MB, would be left; freed chunks join free neighbours; new regions double in size. What a
chunk has beyond the request counts as used, which can be nearly half of it.
"""

from __future__ import annotations

import bisect

_GRANULE = 256
_FIRST_REGION = 2 << 20
_MOST_WASTED = 128 << 20


class BestFitHeap:
    """A heap.

    Attributes:
      used_bytes: Of all chunks that are given out.
    """

    def __init__(self) -> None:
        self.used_bytes = 0
        self._sizes: dict[int, int] = {}  # address of a chunk -> bytes
        self._after: dict[int, int | None] = {}  # the next chunk of the same region
        self._before: dict[int, int | None] = {}
        self._free: list[tuple[int, int]] = []  # (bytes, address), sorted
        self._end = 0
        self._region = _FIRST_REGION

    def allocate(self, requested_bytes: int) -> int:
        """The address of a chunk of at least `requested_bytes`."""
        needed = max(-(-requested_bytes // _GRANULE), 1) * _GRANULE
        place = bisect.bisect_left(self._free, (needed, -1))
        if place == len(self._free):
            self._grow(needed)
            place = bisect.bisect_left(self._free, (needed, -1))
        size, address = self._free.pop(place)
        if size >= 2 * needed or size - needed >= _MOST_WASTED:
            rest = address + needed
            self._link(rest, self._after[address])
            self._link(address, rest)
            self._sizes[address], self._sizes[rest] = needed, size - needed
            bisect.insort(self._free, (size - needed, rest))
        self.used_bytes += self._sizes[address]
        return address

    def release(self, address: int) -> None:
        """Gives a chunk back."""
        self.used_bytes -= self._sizes[address]
        before, after = self._before[address], self._after[address]
        if after is not None and self._take(after):
            self._join(address, after)
        if before is not None and self._take(before):
            self._join(before, address)
            address = before
        bisect.insort(self._free, (self._sizes[address], address))

    def _join(self, first: int, second: int) -> None:
        """Makes one chunk of two neighbours."""
        self._sizes[first] += self._sizes.pop(second)
        self._link(first, self._after.pop(second))
        del self._before[second]

    def _take(self, address: int) -> bool:
        """Removes a chunk from the free ones; False where it is not one of them."""
        entry = (self._sizes[address], address)
        place = bisect.bisect_left(self._free, entry)
        if place == len(self._free) or self._free[place] != entry:
            return False
        del self._free[place]
        return True

    def _link(self, address: int, after: int | None) -> None:
        self._after[address] = after
        if after is not None:
            self._before[after] = address

    def _grow(self, needed: int) -> None:
        doubled = False
        while needed > self._region:
            self._region *= 2
            doubled = True
        address, self._end = self._end, self._end + self._region
        self._sizes[address] = self._region
        self._after[address] = self._before[address] = None
        bisect.insort(self._free, (self._region, address))
        if not doubled:
            self._region *= 2
