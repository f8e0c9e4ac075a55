"""The examples in docstrings of public names run, one after the other, on a small model and data of its own."""

import doctest
import functools
import importlib
import inspect
import re
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from synthetic import network
from synthetic_layers import decoder
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import planner, theory

ROOT = Path(__file__).resolve().parent.parent
layers = keras.layers
# Those that cannot run here, and where what they say runs.
ELSEWHERE = {
    "distribute.fit": "ResNet-50 for 20 epochs: tests/distribute/test_workers.py",
    "find_max_batch_size": "a project of the reader's: tests/memory/test_max_batch.py",
    "distribute.place": "two devices: tests/distribute/test_stages.py",
    "model_planning.ModelPlan": "the example of `plan`, which runs here",
}


class OfOneSetting(types.ModuleType):
    """tf_comptrain, but studies have one bound, stage and epoch: as written they take minutes."""

    impact_study = staticmethod(
        functools.partial(ct.impact_study, bounds=(0.1,), stages=["start"], epochs=1, progress=False)
    )

    def __getattr__(self, name):
        return getattr(ct, name)


def examples():
    """By name of the object that has them; each once."""
    text = (ROOT / "docs" / "api.md").read_text()
    found, seen = {}, set()
    for module, rows in re.findall(r"^## ([\w.]+)\n(.*?)(?=^## |\Z)", text, re.M | re.S):
        for name in re.findall(r"^\| `(\w+)` \|", rows, re.M):
            thing = getattr(importlib.import_module(module), name)
            sources = [e.source for e in doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")]
            if sources and not inspect.ismodule(thing) and id(thing) not in seen:
                seen.add(id(thing))
                found[f"{module}.{name}".removeprefix("tf_comptrain.")] = sources
    return found


EXAMPLES = examples()


def build():
    """Large enough for TensorFlow's profiler to record its tensors."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 8)),
            layers.Conv2D(96, 3, padding="same", activation="relu", name="encoder"),
            layers.Flatten(),
            layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"], jit_compile=False)
    return model


def names(folder):
    """What the examples take for granted."""
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(64, 16, 16, 8)).astype("float32"), rng.integers(0, 4, 64)
    samples = tf.data.Dataset.from_tensor_slices((images, labels))
    return {
        "ct": OfOneSetting("ct"), "tf": tf, "keras": keras, "layers": layers, "planner": planner, "Path": Path,
        "model": build(), "build": build, "data": ((images[:32], labels[:32]), (images[32:], labels[32:])),
        "images": images, "labels": labels, "x": images, "y": labels, "samples": samples, "dataset": samples.batch(16),
        "loss_fn": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "chain": decoder(2, 1024, 8),
        "Warp": type("Warp", (layers.Layer,), {}), "plan_graph": planner.plan_graph,
        "graph_from_json": planner.graph_from_json, "weight_gradient_sigma": theory.weight_gradient_sigma,
    }  # fmt: skip


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "study"
    given = names(folder)
    given["ct"].impact_study(build, given["data"], ["plane"], bounds=(0.05, 0.1), folder=folder)
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch, request):
    """The reader's, with the files that examples name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "step.json").write_text(network("unet", 20).to_json())
    (tmp_path / "h200x4.json").write_text((ROOT / "examples" / "hardware" / "h200x4.json").read_text())
    if request.node.callspec.params["name"] in ("Study", "best_fit"):
        (tmp_path / "study").symlink_to(request.getfixturevalue("study"))
    return tmp_path


def test_what_runs_elsewhere_is_there():
    assert set(ELSEWHERE) < set(EXAMPLES) and len(EXAMPLES) > 25


@pytest.mark.long("impact_study", "Study", "best_fit", "elastic_batch", "AdaptiveBatchSize")
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ELSEWHERE])
def test_an_example_runs(name, folder):
    given = names(folder)
    for source in EXAMPLES[name]:
        exec(compile(source, name, "exec"), given)
