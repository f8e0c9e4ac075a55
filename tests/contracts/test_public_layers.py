"""Each of Keras' public layers trains compressed as it does plain, in all the ways it may be called."""

import contextlib
import functools

import numpy as np
import pytest
from public_layers import CASES, CLASSES, Comparison, cosine, largest_difference, quick_graphs

STORAGES = {
    "keep": {"storage": "keep"},
    "zvc": {"codec": "zvc"},
    "tight": {"error_bound": 1e-6},
    "default": {},
}
# Through the graph's optimizer. "tight" has the graph of "default", with another constant; "keep" that of plain Keras.
OPTIMIZED = ("zvc", "default")
# A kernel of this library, or a sum in another order, rounds differently; a tight bound adds its own error.
TOLERANCES = {"keep": 1e-6, "zvc": 1e-4, "tight": 1e-3}


@functools.lru_cache
def comparison():
    return Comparison(CASES)


@functools.lru_cache
def compressed(storage):
    with contextlib.nullcontext() if storage in OPTIMIZED else quick_graphs():
        return comparison().compressed(**STORAGES[storage])


def test_the_cases_are_eighty_classes_and_more():
    assert len(CLASSES) >= 80
    assert not comparison().skipped  # plain Keras runs them all


@pytest.mark.long(but=["*-default"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("case", CASES)
def test_a_layer_trains_as_plain_keras_has_it(case, storage):
    plain = comparison()
    found, failed, _ = compressed(storage)
    assert case not in failed, failed[case]
    if storage not in TOLERANCES:
        assert cosine(found[case], plain.plain[case]) > 0.9
        assert all(np.isfinite(value).all() for value in found[case].values())
        return
    difference, where = largest_difference(found[case], plain.plain[case])
    assert difference <= TOLERANCES[storage], f"{where}: {difference:.1e}"


def test_most_of_them_are_held_compressed():
    """Else the comparisons above would be of plain Keras with itself."""
    _, _, held = compressed("default")
    assert held > 40
