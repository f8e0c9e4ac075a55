"""Compressed training takes no more memory than plain where XLA compiles the step: its compiler's plan says so.

All kinds: `python benchmarks/models/xla_memory.py --set kinds`.
"""

import planned
import pytest
from test_kinds import CASES

# Those whose plain step plans 2 MB or more; in smaller ones the table of the streams' states counts.
SHORT = ("SimCLR", "siamese", "triplet")
LONG = (
    "VAE", "DCGAN", "WGAN with gradient penalty, smooth", "diffusion", "U-Net", "Conv3D", "vision transformer",
    "NeRF", "masked language model", "dilated TCN", "decoder with rotary positions", "message passing", "Reptile",
    "tf.recompute_grad", "persistent tape", "sharpness-aware", "gradients of inputs",
)  # fmt: skip


@pytest.mark.parametrize("name", [*SHORT, *(pytest.param(each, marks=pytest.mark.long) for each in LONG)])
def test_compressed_plans_no_more_than_plain(name):
    plain, compressed = (planned.analysis(CASES[name].make, way).temporary_bytes for way in (False, True))
    assert plain > 2e6 and compressed <= plain
