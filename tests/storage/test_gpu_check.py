"""The check that GPU kernels pass before their first use, and what follows from it; on the CPU."""

import itertools
import logging

import pytest
import tensorflow as tf
from models import compiled, images, small_cnn

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.storage import gpu_check

X, Y = images(8)


@pytest.fixture
def with_gpu(monkeypatch):
    """A machine that says it has a GPU, and a library that says it has kernels for it."""
    monkeypatch.setattr(gpu_check, "on_gpu", lambda: True)
    monkeypatch.setattr(_keras, "kernel_devices", lambda op: ["CPU", "GPU"])
    gpu_check.problem.cache_clear()
    yield monkeypatch
    gpu_check.problem.cache_clear()


def streams(model):
    return [site.read_state().stream_bytes for site in instrumentation(model).sites().values()]


@pytest.mark.parametrize("xla", [False, True])
def test_the_cpu_answers_as_the_cpu(xla):
    assert gpu_check._first_difference("CPU:0", xla) is None


def test_a_device_without_kernels_or_with_wrong_ones_is_found(monkeypatch):
    calls = itertools.count()

    def fails(x):
        raise tf.errors.InternalError(None, None, "no kernel image")

    cases = {
        "no kernel image": fails,
        "elements where": lambda x: [tf.zeros(next(calls))],
        "differ from the CPU's by up to 1": lambda x: [tf.fill([3], next(calls) % 2)],
        "up to nan": lambda x: [tf.constant([float("nan") if next(calls) % 2 else 0.0])],
    }
    for message, run in cases.items():
        calls = itertools.count()
        monkeypatch.setattr(gpu_check, "_checks", lambda run=run: [("test", run, 0.0)])
        assert message in gpu_check._first_difference("CPU:0", xla=False)


def test_a_passed_check_lets_models_compress(with_gpu):
    with_gpu.setattr(gpu_check, "_first_difference", lambda device, xla: None)
    model = compiled(small_cnn(), jit_compile=False)
    assert ct.compress_model(model).obstacle is None
    model.train_on_batch(X, Y)
    assert len(streams(model)) >= 3 and all(streams(model))


def test_a_step_of_a_cpu_waits_for_no_check(monkeypatch):
    monkeypatch.setattr(gpu_check, "problem", lambda xla: pytest.fail("the GPU's kernels were tried"))
    assert ct.compress_model(compiled(small_cnn(), jit_compile=True)).obstacle is None


def test_a_failed_check_warns_once_and_trains_plain(with_gpu, caplog):
    with_gpu.setattr(gpu_check, "_first_difference", lambda device, xla: "masks: wrong")
    with caplog.at_level(logging.WARNING, logger="absl"):
        model = compiled(small_cnn(), jit_compile=False)
        assert "masks: wrong" in ct.compress_model(model).obstacle
        model.train_on_batch(X, Y)
    assert sum("failed their check" in record.getMessage() for record in caplog.records) == 1
    assert streams(model) == []
