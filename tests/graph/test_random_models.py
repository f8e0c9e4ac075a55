"""Random models have plain's gradients: kept bit for bit, lossless but for rounding, within 25% by default.

The same models each time. For others, and more: `COMPTRAIN_RANDOM_MODELS=500 pytest tests/graph/test_random_models.py`,
or `python tests/graph/random_models.py --models 500`, which lists all that are wrong instead of shrinking the first.
"""

import os

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from model_blocks import BLOCKS
from random_models import JOINS, Spec, check, lowers

MODELS = int(os.environ.get("COMPTRAIN_RANDOM_MODELS", "0"))
PARTS = st.lists(st.tuples(st.sampled_from(sorted(BLOCKS)), st.sampled_from(JOINS)), min_size=1, max_size=3)
SPECS = st.builds(lambda parts, seed: Spec(*zip(*parts), seed), PARTS, st.integers(0, 99))
LOWERED = SPECS.filter(lowers)


def drawn(models):
    """As many models, or as the environment has it; the same ones unless it does."""
    return settings(
        max_examples=MODELS or models,
        derandomize=not MODELS,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if MODELS else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def test_there_are_enough_blocks():
    assert len(BLOCKS) >= 135


@drawn(8)
@given(SPECS)
def test_on_the_executor(spec):
    assert check(spec, jit=False) == []


@drawn(4)
@given(LOWERED)
def test_under_xla(spec):
    assert check(spec, jit=True) == []
