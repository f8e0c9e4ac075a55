"""Compressed training plans no more memory than plain where XLA compiles the step.

All kinds: `python benchmarks/models/xla_memory.py --set kinds`.
"""

import planned
import pytest
from test_kinds import CASES

# Those whose plain step plans 2 MB or more; in smaller ones the table of the streams' states counts.
LARGE = (
    "SimCLR",
    "siamese",
    "triplet",
    "DCGAN",
    "Conv3D",
    "message passing",
    "Reptile",
    "gradients of inputs",
)


@pytest.mark.long(but=["siamese"])
@pytest.mark.parametrize("name", LARGE)
def test_compressed_plans_no_more_than_plain(name):
    plain, compressed = (
        planned.analysis(CASES[name].make, codec).temporary_bytes for codec in (None, "plane")
    )
    assert plain > 2e6 and compressed <= plain
