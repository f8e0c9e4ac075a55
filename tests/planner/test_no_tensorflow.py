"""The planner runs where there is no TensorFlow."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# The package itself imports TensorFlow, so a bare module of its name stands in for it.
_PROGRAM = """
import sys, types
package = types.ModuleType("tf_comptrain")
package.__path__ = [sys.argv[1]]
sys.modules["tf_comptrain"] = package
sys.modules["tensorflow"] = sys.modules["keras"] = None  # importing them is an error
from tf_comptrain import planner
from tf_comptrain.planner.synthetic import network
plan = planner.plan_graph(network("chain", 10, offload=False), "600MB", budget_s=1)
plan.plot(sys.argv[2])
assert plan.rows
loaded = [name for name in sys.modules if name.startswith("tf_comptrain.")]
assert all(name.split(".")[1] in ("arguments", "planner") for name in loaded), loaded
"""


def test_no_tensorflow(tmp_path):
    command = [sys.executable, "-c", _PROGRAM, str(ROOT / "tf_comptrain"), str(tmp_path / "plan.png")]
    subprocess.run(command, check=True)
