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
