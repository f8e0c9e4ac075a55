"""Which tensors a compiled step keeps: on made-up networks, whose totals are the highest of their passes' levels."""

import numpy as np
import pytest

from tf_comptrain.model_planning.kept_search import USED, CompiledStep, KeepableTensor, KeptSearch

TRIES = 5


class Network:
    """Layers whose tensors are alive until their backward pass, which has a workspace of its own."""

    def __init__(self, count, seed, contradicts=0.0):
        random = np.random.default_rng(seed)
        self.sizes = (1e6 * 2.0 ** -(4 * np.arange(count) // count) * random.uniform(0.5, 1.5, count)).astype(
            int
        )
        self.streams = self.sizes // 10
        self.work = (self.sizes * random.uniform(2, 6, count)).astype(int)
        self.rest = int(self.sizes.sum() * random.uniform(0.05, 0.5))
        self.gains = self.sizes * random.integers(1, 4, count)
        self.seen = random.uniform(size=count) < 0.8  # a kept value that bears its own name
        self.names = [f"t{k}" for k in range(count)]
        self.contradicts = contradicts
        self.compiled = []

    def candidates(self):
        items = zip(self.names, self.sizes - self.streams, self.gains)
        return [KeepableTensor(name, int(more), float(gain)) for name, more, gain in items]

    def step(self, kept):
        keeps = np.array([name in kept for name in self.names])
        levels = np.cumsum(np.where(keeps, self.sizes, self.streams)) + self.work
        peak = int(levels.argmax())
        alive = {n for n, keep, seen in zip(self.names[: peak + 1], keeps, self.seen) if seen or not keep}
        scatter = np.random.default_rng(int(keeps.dot(np.arange(1, len(keeps) + 1) ** 2))).uniform()
        total = self.rest + int(levels[peak] * (1 + self.contradicts * scatter))
        return CompiledStep(frozenset(kept), total, frozenset(alive))

    def compile_step(self, kept):
        assert kept not in {step.kept for step in self.compiled}  # nothing is compiled twice
        self.compiled.append(self.step(kept))
        return self.compiled[-1]

    def search(self, share, tries=TRIES):
        """(The search, its limit), so far between both ends."""
        self.compiled = [self.step(()), self.step(self.names)]
        low, high = (step.total_bytes for step in self.compiled)
        limit = int(low + share * (high - low))
        found = KeptSearch(self.candidates(), limit, self.compiled)
        found.run(self.compile_step, tries)
        return found, limit


@pytest.mark.parametrize("contradicts", [0.0, 0.02])
@pytest.mark.parametrize("count", [8, 30, 120])
def test_within_the_limit_and_near_it(count, contradicts):
    near = []
    for seed in range(6):
        network = Network(count, seed, contradicts)
        for share in (0.1, 0.3, 0.5, 0.7, 0.9):
            search, limit = network.search(share)
            best = search.best()
            assert best.total_bytes <= limit and len(network.compiled) <= 2 + TRIES
            smallest = min(one.more_bytes for one in network.candidates() if one.name not in best.kept)
            near.append(best.total_bytes >= USED * limit or smallest > limit - best.total_bytes)
    assert np.mean(near) >= 0.75


def test_more_memory_keeps_more():
    for seed in range(6):
        network = Network(60, seed)
        sizes = dict(zip(network.names, network.sizes))
        kept = [
            sum(sizes[name] for name in network.search(share)[0].best().kept)
            for share in (0.1, 0.4, 0.7, 0.95)
        ]
        assert kept == sorted(kept) and kept[0] < kept[-1]


def test_tensors_that_save_the_most_time_a_byte_come_first():
    def step(kept):
        return CompiledStep(frozenset(kept), 1000 + 100 * len(kept), frozenset("abcd"))

    candidates = [KeepableTensor(name, 100, gain) for name, gain in zip("abcd", (1, 4, 2, 3))]
    search = KeptSearch(candidates, 1210, [step(()), step("abcd")])
    search.run(step, TRIES)
    assert search.best().kept == {"b", "d"}


def test_names_at_the_peak_that_are_wrong():
    """Nothing that is kept bears its name, and streams that are not alive do: the totals alone lead to the limit."""

    def step(kept):
        return CompiledStep(
            frozenset(kept), 10_000 + sum(map(int, kept)), frozenset(map(str, range(60, 100))) - kept
        )

    candidates = [KeepableTensor(str(size), size, 1.0 / size) for size in range(50, 100)]
    limit = 12_000
    search = KeptSearch(candidates, limit, [step(frozenset()), step(frozenset(map(str, range(50, 100))))])
    search.run(step, TRIES)
    assert USED * limit <= search.best().total_bytes <= limit


def test_nothing_fits():
    search = KeptSearch([KeepableTensor("a", 10, 1.0)], 100, [CompiledStep(frozenset(), 101, frozenset())])
    search.run(lambda kept: pytest.fail("compiled"), TRIES)
    assert search.best() is None


def test_an_interrupted_search_has_what_it_found():
    network = Network(120, 0)
    search, limit = network.search(0.5, tries=0)

    def compile_step(kept):
        if len(network.compiled) == 3:
            raise KeyboardInterrupt
        return network.compile_step(kept)

    with pytest.raises(KeyboardInterrupt):
        search.run(compile_step, TRIES)
    assert len(search.compiled) == 3 and search.best().total_bytes <= limit
