"""The contract of public layers under other dtype policies, compilers, strategies, and eagerly: one call of each."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from public_layers import CASES, Comparison, cosine, eagerly, largest_difference, quick_graphs, traced

STORAGES: dict = {"keep": {"storage": "keep"}, "zvc": {"codec": "zvc"}, "default": {}}
LOOPS = ("RNN", "LSTM", "GRU", "Bidirectional", "TimeDistributed")
CHOSEN_LOOPS = ("LSTM", "ConvLSTM2D", "TimeDistributed")
# One rank of each layer, and a loop of each kind: traces take long, and test_public_layers.py has them all.
NAMES = tuple(
    name
    for name in CASES
    if name in CHOSEN_LOOPS
    or name[-2:] not in ("1D", "3D")
    and not any(loop in CASES[name].layer for loop in LOOPS)
)
# What has weights, states or random numbers, of which each replica has its own, and what is held in another way.
ON_REPLICAS = tuple(
    name
    for name in NAMES
    if re.search("Dense|Embed|Conv|Norm|LU|[Dd]ropout|Noise|Attention|LSTM|MaxPool|Multiply|Activation", name)
)
# Plain Keras compiles neither random image layers nor adaptive maxima. Compilations take long, of loops above all.
UNDER_XLA = tuple(
    name
    for name in NAMES
    if not name.startswith(("Random", "AdaptiveMax", "ConvLSTM")) and not re.search("[Dd]ropout|Noise", name)
)
# Compiled, these draw other numbers than eagerly.
RANDOM = ("Dropout", "GaussianNoise", "MultiHeadAttention dropout")


class Mode(NamedTuple):
    """How the layers are run.

    Attributes:
      policy: Dtype policy.
      run: As in `Comparison`.
      run_plain: As in `Comparison`.
      rounded: How far keep and zvc may be from plain: a rounding of the compute type where a compiler or a kernel of
        this library rounds.
      names: Of cases.
      storages: What is compared with plain.
    """

    policy: str = "float32"
    run: Any = traced
    run_plain: Any = eagerly
    rounded: float = 1e-4
    names: tuple[str, ...] = NAMES
    storages: tuple[str, ...] = tuple(STORAGES)


compiled = functools.partial(tf.function, jit_compile=True, autograph=False)
MODES = {
    "mixed_bfloat16": Mode("mixed_bfloat16", rounded=3e-2),
    "mixed_float16": Mode("mixed_float16", rounded=4e-3),
    "bfloat16": Mode("bfloat16", rounded=3e-2),
    "jit_compile": Mode(run=compiled, names=UNDER_XLA, storages=("zvc", "default")),
    "jit_compile, random": Mode(run=compiled, run_plain=compiled, names=RANDOM, storages=("zvc", "default")),
    # Nothing is held in another way eagerly, so that one storage that is compared closely is enough.
    "run_eagerly": Mode(run=eagerly, storages=("zvc", "default")),
}
# The gradient of an attention's key bias: a softmax does not change with it.
NOTHING_BUT_ROUNDING = "key/bias"
# Of equal maxima, which 16-bit values have, plain Keras gives each a share of the gradient, and codec ops the first.
TIES = ("GlobalMaxPooling", "AdaptiveMaxPooling")


def differences(comparison: Comparison, storages=tuple(STORAGES)) -> dict[str, dict[str, list]]:
    """By storage and case: [what failed, largest difference, where, cosine of the gradients, all finite]."""
    answer: dict[str, dict[str, list]] = {}
    for storage in storages:
        found, failed, _ = comparison.compressed(**STORAGES[storage])
        answer[storage] = {
            name: [
                failed.get(name),
                *((0.0, "") if name in failed else largest_difference(found[name], expected)),
                1.0 if name in failed else cosine(found[name], expected),
                all(np.isfinite(value).all() for value in found[name].values()),
            ]
            for name, expected in comparison.plain.items()
            if name not in comparison.skipped
        }
    return answer


def of_mode(mode):
    if mode == "mirrored":
        command = [sys.executable, "-c", MIRRORED]
        result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr[-3000:]
        return json.loads(result.stdout.splitlines()[-1])
    chosen = MODES[mode]
    comparison = Comparison(chosen.names, chosen.policy, ["positional"], chosen.run, chosen.run_plain)
    return {"skipped": comparison.skipped, **differences(comparison, chosen.storages)}


MIRRORED = """
import json
import sys
from pathlib import Path

import tensorflow as tf

sys.path.insert(0, str(Path.cwd().parent))
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from public_layers import Comparison, traced
from test_modes import ON_REPLICAS, differences

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def on_replicas(compute):
    def step(inputs):
        outputs, grads = strategy.run(compute, (inputs,))
        local = strategy.experimental_local_results
        return tf.nest.map_structure(lambda value: tf.stack(local(value)), (outputs, grads))

    return step


with strategy.scope():
    comparison = Comparison(
        ON_REPLICAS, ways=["positional"], run=lambda compute: traced(on_replicas(compute)), run_plain=on_replicas
    )
    print(json.dumps({"skipped": comparison.skipped, **differences(comparison)}))
"""


# The others round as mixed_bfloat16 does, or run as jit_compile; test_mirrored.py has two replicas.
@pytest.mark.long(but=["jit_compile", "run_eagerly"])
@pytest.mark.parametrize("mode", [*MODES, "mirrored"])
def test_layers_train_as_plain_keras_has_them(mode):
    with quick_graphs():  # test_public_layers.py has the graph's optimizer
        answer = of_mode(mode)
    assert not answer["skipped"], answer["skipped"]  # plain Keras does not run these
    rounded = MODES[mode].rounded if mode in MODES else 1e-4
    wrong = {}
    for storage in answer.keys() - {"skipped"}:
        for case, (failed, difference, where, angle, finite) in answer[storage].items():
            ties = "float16" in mode and CASES[case].layer.startswith(TIES)
            if failed:
                wrong[storage, case] = failed
            elif storage == "default" or ties:
                if not (finite and angle > 0.9):
                    wrong[storage, case] = f"cosine {angle:.3f}, finite: {finite}"
            elif not difference <= (2 * rounded if where.endswith(NOTHING_BUT_ROUNDING) else rounded):
                wrong[storage, case] = f"{where}: {difference:.1e}"
    assert not wrong
