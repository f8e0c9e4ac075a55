"""Train TensorFlow/Keras networks in a fraction of their memory.

    import tf_comptrain as ct

    ct.compress_model(model)
    model.fit(...)

docs/design.md says how it works, docs/limitations.md what it does not do.
"""

# `backend` is imported first: it refuses a Keras with another backend than TensorFlow's.
from tf_comptrain import backend, codecs, distribute, memory, rules  # noqa: F401
from tf_comptrain._keras import training_scope
from tf_comptrain.callbacks import AdaptiveBatchSize, AdaptiveErrorBound, MemoryLogger, elastic_batch
from tf_comptrain.codecs import ErrorBound
from tf_comptrain.compression.model import report, restore_model
from tf_comptrain.compression.recompute import Recompute
from tf_comptrain.compression.report import Report
from tf_comptrain.compression.wrapper import Compress
from tf_comptrain.memory import find_max_batch_size
from tf_comptrain.model_planning import compress_model, plan
from tf_comptrain.native import LibraryError
from tf_comptrain.rules import register_rule
from tf_comptrain.storage import Offload, Policy, Setting
from tf_comptrain.study.fitting import best_fit
from tf_comptrain.study.results import Study
from tf_comptrain.study.running import impact_study
from tf_comptrain.theory.check import LawCheck, check_error_law
from tf_comptrain.training.fitting import fit
from tf_comptrain.version import __version__

__all__ = [
    "AdaptiveBatchSize",
    "AdaptiveErrorBound",
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
