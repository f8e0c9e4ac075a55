"""Places where tensors are held between the forward and the backward pass."""

from tf_comptrain.storage.engine import (
    Engine,
    codec_obstacle,
    engine_of_call,
    engine_of_model,
    engine_of_step,
    keep_layouts,
    state_unknown_to_keras,
)
from tf_comptrain.storage.fences import after, after_weights, gated
from tf_comptrain.storage.held import (
    BITMASK,
    COMPRESS,
    FUSED,
    KEEP,
    MIN_ELEMENTS_PER_SAMPLE,
    REBUILD,
    TILE,
    Held,
    hold,
    is_large,
    worth_holding,
)
from tf_comptrain.storage.holding import Holding, holding_of, holdings_of
from tf_comptrain.storage.offload import (
    LEAST_PLAIN_BYTES,
    OFFLOAD,
    Offload,
    Offloaded,
    Raw,
    obstacle,
)
from tf_comptrain.storage.policy import MODES, Policy, PolicyChoice, Setting, policy_of
from tf_comptrain.storage.site import (
    DEFAULT_BOUNDS,
    STATISTICS,
    LawSite,
    Site,
    variable,
)
from tf_comptrain.storage.spill_folder import default_folder, is_in_memory

__all__ = [
    "BITMASK",
    "COMPRESS",
    "DEFAULT_BOUNDS",
    "FUSED",
    "KEEP",
    "LEAST_PLAIN_BYTES",
    "MIN_ELEMENTS_PER_SAMPLE",
    "MODES",
    "OFFLOAD",
    "REBUILD",
    "TILE",
    "STATISTICS",
    "Engine",
    "Held",
    "Holding",
    "LawSite",
    "Offload",
    "Offloaded",
    "Policy",
    "PolicyChoice",
    "Raw",
    "Setting",
    "Site",
    "after",
    "after_weights",
    "codec_obstacle",
    "default_folder",
    "engine_of_call",
    "engine_of_model",
    "engine_of_step",
    "gated",
    "hold",
    "holding_of",
    "holdings_of",
    "is_in_memory",
    "is_large",
    "keep_layouts",
    "obstacle",
    "policy_of",
    "state_unknown_to_keras",
    "variable",
    "worth_holding",
]
