"""Planning needs no TensorFlow, and neither does asking what the command can do."""

import subprocess
import sys

import pytest

_WITHOUT = "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None  # importing them is an error"
_PLANS = f"""
{_WITHOUT}
sys.path.append(sys.argv[3])
import pathlib
from tf_comptrain import planner
from synthetic import network
plan = planner.plan_graph(network("chain", 10, offload=False), "600MB", budget_s=1)
plan.plot(sys.argv[1])
assert plan.rows
planner.hardware_from_json(pathlib.Path(sys.argv[2]))
"""
_LOADED = """
import sys
try:
    {statement}
except SystemExit as end:
    assert end.code == 0
slow = {{"tensorflow", "keras", "scipy", "matplotlib", "rich"}} & set(sys.modules)
assert not slow, slow
"""


def ran(program, *arguments):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_plan_is_made_without_tensorflow(tmp_path, pytestconfig):
    hardware = pytestconfig.rootpath / "examples" / "hardware" / "h200x4.json"
    ran(_PLANS, tmp_path / "plan.png", hardware, pytestconfig.rootpath / "benchmarks" / "planner")
    assert (tmp_path / "plan.png").stat().st_size


@pytest.mark.parametrize(
    "statement",
    [
        "import tf_comptrain.planner",
        "import tf_comptrain; dir(tf_comptrain); tf_comptrain.__version__",
        "from tf_comptrain import cli; cli.parse(['tf-comptrain', '--help'])",
        "from tf_comptrain import cli; cli.parse(['tf-comptrain', 'bench', '--help'])",
    ],
)
def test_what_starts_at_once_imports_nothing_slow(statement):
    assert ("--help" in statement) == ("usage: tf-comptrain" in ran(_LOADED.format(statement=statement)))
