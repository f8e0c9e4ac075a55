import argparse
import fnmatch
import gc
import os
import shutil
import sys
import zlib
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Without oneDNN, which TensorFlow leaves off on processors before AVX-512, no memory of a CPU is counted.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Peaks are compared with the sizes of tensors; cuDNN's workspaces may be larger than the tests' tensors.
os.environ.setdefault("TF_CUDNN_WORKSPACE_LIMIT_IN_MB", "1")
# LLVM takes half of the time of XLA's compilations, and is the last to see a program: what runs, in which order and
# in which memory, is decided before it. `make test-long` has it optimize, as it does for users.
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks" / "planner"))  # made-up networks


# Every reason for which a test may be skipped where CI is set, as in .ci/run; any other skip is a failure there.
ALLOWED_SKIPS = {
    "there is no GPU here": "the machine has none",
    "there may be a GPU here": "what is said without one cannot be seen on a machine with one",
    "on a GPU XLA plans the convolutions' workspaces in": "the measured peak would be theirs",
    "the custom call is for the CPU's compiler": "a GPU's has the other fence",
    "the library was built without CUDA": "a GPU, and no nvcc when the library was built",
    "there is no nvcc": "a GPU, and no compiler for it",
    "the option is set in this process": "a step on a GPU's executor has set it",
    "on one core it is chance": "the machine has one core",
    "there is no Chromium": "pages are looked at where there is a browser",
    "this TensorFlow has no XLA headers": "one before 2.20",
    "a tracker is not installed": "MLflow and W&B take 200 MB: pip install -e '.[tracking]'",
}


def _refuse_a_skip_that_is_not_listed(report):
    if os.environ.get("CI", "") in ("", "0", "false") or report.outcome != "skipped":
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if hasattr(report, "wasxfail"):
        reason = f"an expected failure: {reason}"
        del report.wasxfail  # pytest would count it as one still
    if not any(reason.removeprefix("Skipped: ").startswith(listed) for listed in ALLOWED_SKIPS):
        report.outcome = "failed"
        report.longrepr = f"{reason}: this skip is not in ALLOWED_SKIPS of tests/conftest.py."


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    _refuse_a_skip_that_is_not_listed((yield).get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report():
    """Of modules that skip themselves."""
    _refuse_a_skip_that_is_not_listed((yield).get_result())


@pytest.fixture(autouse=True, scope="session")
def no_tensor_float_32():
    """Results are compared as float32: a GPU's TF32 has 10 bits where that has 23."""
    if "tensorflow" in sys.modules:  # tests that need none do without
        sys.modules["tensorflow"].config.experimental.enable_tensor_float_32_execution(False)


# Files that take long begin first, so that the two processes of `make test` end together.
BEGIN_FIRST = (
    "compression/test_leaks.py",
    "graph/test_tiled_heads.py",
    "compression/test_xla.py",
    "training/test_fit.py",
    "compression/test_recompute.py",
    "callbacks/test_adaptive_error_bound.py",
    "graph/test_tiled_attention.py",
    "graph/test_random_models.py",
    "compression/test_first_step.py",
    "contracts/test_public_layers.py",
    "memory/test_memory_own_step.py",
    "_keras/test_keras_train_step.py",
    "compression/test_model.py",
    "kinds/test_kinds.py",
    "distribute/test_stages.py",
    "model_planning/test_offload_of_plans.py",
    "compression/test_training_modes.py",
    "contracts/test_modes.py",
    "storage/test_offload.py",
    "memory/test_analysis.py",
    "graph/test_rewire.py",
    "graph/passes/test_lists.py",
    "study/test_impact_study.py",
    "memory/test_limit_under_xla.py",
    "graph/passes/test_under_xla.py",
    "training/test_fit_microbatches.py",
    "test_docstrings.py",
    "model_planning/test_plan_under_xla.py",
    "graph/test_activations.py",
    "model_planning/test_plan_of_a_model.py",
    "rules/test_layers.py",
    "model_planning/test_microbatches.py",
)


def _is_long(item):
    """Of a marker's patterns: of names of cases that are long, and in `but` of those that are not."""
    marker = item.get_closest_marker("long")
    if marker is None:
        return False
    case = item.callspec.id if hasattr(item, "callspec") else ""

    def is_one_of(patterns):
        return any(fnmatch.fnmatchcase(case, pattern) for pattern in patterns)

    return is_one_of(marker.args or ["*"]) and not is_one_of(marker.kwargs.get("but", ()))


def _folder(item):
    """That of `tests` in which it is; `.` directly there."""
    return (*item.path.relative_to(Path(__file__).parent).parts[:-1], ".")[0]


def _leave_out_the_long_ones(config, items):
    folders = config.getoption("--long").split(",")
    part, parts = config.getoption("--long-part")

    def runs(item):
        if not _is_long(item):
            return True
        # A checksum: Python's `hash` of a text is another one in each process.
        is_of_part = zlib.crc32(item.nodeid.encode()) % parts == part
        return is_of_part and ("all" in folders or _folder(item) in folders)

    left_out = [item for item in items if not runs(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _part_of(text):
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise argparse.ArgumentTypeError(f"must be K/N, such as 0/4, with K below N, not {text!r}")
    return int(part), int(parts)


def pytest_addoption(parser):
    parser.addoption(
        "--long",
        metavar="FOLDERS",
        default="",
        help='folders of tests, such as "examples,study", whose tests marked `long` run too; all for every folder, '
        ". for what is in none",
    )
    parser.addoption(
        "--long-part",
        metavar="K/N",
        type=_part_of,
        default=(0, 1),
        help="of tests marked `long` only every N-th: those whose crc32 of the node id modulo N is K",
    )


def pytest_report_header(config):
    part, parts = config.getoption("--long-part")
    folders = config.getoption("--long")
    return f"long tests: {folders}, part {part} of {parts}" if folders and parts > 1 else None


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "long(*cases, but=()): repeats at length what a shorter test shows, in all cases or in some; make test-long",
    )


def pytest_collection_modifyitems(config, items):
    _leave_out_the_long_ones(config, items)
    first = {Path(__file__).parent / name: place for place, name in enumerate(BEGIN_FIRST)}
    items.sort(key=lambda item: first.get(item.path, len(first)))


def _pass_over_what_stays():
    """The garbage collector does: with modules it takes a tenth of the time of traces."""
    gc.collect()
    gc.freeze()


def pytest_collection_finish():
    _pass_over_what_stays()


@pytest.fixture(autouse=True, scope="module")
def nothing_left_by_other_files():
    """TensorFlow keeps the graphs of gradients for good.

    With those of some thousand tests one collection takes many seconds, and what measures memory collects before each
    step.
    """
    _pass_over_what_stays()
