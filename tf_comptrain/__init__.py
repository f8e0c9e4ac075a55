"""Train TensorFlow/Keras networks in a fraction of their memory.

    import tf_comptrain as ct

    ct.compress_model(model)
    model.fit(...)

docs/design.md says how it works, docs/limitations.md what it does not do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_comptrain.lazy import lazy_names
from tf_comptrain.version import __version__

if TYPE_CHECKING:
    from tf_comptrain import codecs, distribute, memory, rules
    from tf_comptrain._keras import training_scope
    from tf_comptrain.callbacks import (
        AdaptiveBatchSize,
        AdaptiveErrorBound,
        AdaptiveTraining,
        MemoryLogger,
        elastic_batch,
    )
    from tf_comptrain.codecs import ErrorBound
    from tf_comptrain.compression.law_check import LawCheck, check_error_law
    from tf_comptrain.compression.model import report
    from tf_comptrain.compression.recompute import Recompute
    from tf_comptrain.compression.report import Report
    from tf_comptrain.compression.wrapper import Compress
    from tf_comptrain.memory import find_max_batch_size
    from tf_comptrain.model_planning import compress_model, plan, restore_model
    from tf_comptrain.native import LibraryError
    from tf_comptrain.rules import register_rule
    from tf_comptrain.storage import Offload, Policy, Setting
    from tf_comptrain.study.best_fit import best_fit
    from tf_comptrain.study.results import Study
    from tf_comptrain.study.running import impact_study
    from tf_comptrain.training.resilient_fit import fit

__all__ = [
    "AdaptiveBatchSize",
    "AdaptiveErrorBound",
    "AdaptiveTraining",
    "Compress",
    "ErrorBound",
    "LawCheck",
    "LibraryError",
    "MemoryLogger",
    "Offload",
    "Policy",
    "Recompute",
    "Report",
    "Setting",
    "Study",
    "__version__",
    "best_fit",
    "check_error_law",
    "codecs",
    "compress_model",
    "distribute",
    "elastic_batch",
    "find_max_batch_size",
    "fit",
    "impact_study",
    "memory",
    "plan",
    "register_rule",
    "report",
    "restore_model",
    "rules",
    "training_scope",
]

# Names are imported when they are first asked for: `tf_comptrain.planner` and `tf-comptrain --help` need no
# TensorFlow, whose import takes seconds.
_FOLDERS = ("codecs", "distribute", "memory", "rules")
_NAMES = {
    "_keras": ("training_scope",),
    "callbacks": (
        "AdaptiveBatchSize",
        "AdaptiveErrorBound",
        "AdaptiveTraining",
        "MemoryLogger",
        "elastic_batch",
    ),
    "codecs": ("ErrorBound",),
    "compression.model": ("report",),
    "compression.recompute": ("Recompute",),
    "compression.report": ("Report",),
    "compression.wrapper": ("Compress",),
    "memory": ("find_max_batch_size",),
    "model_planning": ("compress_model", "plan", "restore_model"),
    "native": ("LibraryError",),
    "rules": ("register_rule",),
    "storage": ("Offload", "Policy", "Setting"),
    "study.best_fit": ("best_fit",),
    "study.results": ("Study",),
    "study.running": ("impact_study",),
    "compression.law_check": ("LawCheck", "check_error_law"),
    "training.resilient_fit": ("fit",),
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES, _FOLDERS, first="backend")
