import gc
import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Peaks are compared with the sizes of tensors; cuDNN's workspaces may be larger than the tests' tensors.
os.environ.setdefault("TF_CUDNN_WORKSPACE_LIMIT_IN_MB", "1")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True, scope="session")
def no_tensor_float_32():
    """Results are compared as float32: a GPU's TF32 has 10 bits where that has 23."""
    if "tensorflow" in sys.modules:  # tests that need none do without
        sys.modules["tensorflow"].config.experimental.enable_tensor_float_32_execution(False)


# Files that take long begin first, so that the two processes of `make test` end together.
LONG = (
    "contracts/test_modes.py",
    "training/test_fit.py",
    "distribute/test_workers.py",
    "compression/test_leaks.py",
    "kinds/test_kinds.py",
    "compression/test_xla.py",
    "examples/test_examples.py",
    "contracts/test_public_layers.py",
    "benchmarks/test_applications.py",
    "cli/test_cli.py",
    "callbacks/test_adaptive_error_bound.py",
    "benchmarks/test_gpu_run.py",
    "memory/test_memory_own_step.py",
    "compression/test_recompute.py",
    "benchmarks/test_equivalence.py",
    "study/test_impact_study.py",
)


def pytest_collection_modifyitems(items):
    first = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: first.get(item.path, len(first)))


def pytest_collection_finish():
    """The garbage collector passes over the modules, which stay: it takes a tenth of the time of traces."""
    gc.collect()
    gc.freeze()
