"""find_max_batch_size: the search, and its trials in processes of their own."""

import multiprocessing
import os
import signal
import sys
import types

import pytest
from models import compiled, layers, small_cnn
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.memory import max_batch, trial
from tf_comptrain.memory.trial import OK, OUT_OF_MEMORY, Job, Trial, run_trial


def allocator(constant, per_sample, floor=0, limit=300_000_000):
    """A model of trials: the peak is flat below `floor` bytes of samples."""

    def attempt(batch):
        total = constant + max(per_sample * batch, floor)
        return Trial(batch, OK, total) if total <= limit else Trial(batch, OUT_OF_MEMORY, 0)

    return attempt


@pytest.mark.parametrize(
    ("constant", "per_sample", "floor", "most_trials"),
    [(10e6, 1e6, 0, 6), (10e6, 0.5e6, 30e6, 9), (120e6, 7e6, 0, 6), (10e6, 90e6, 0, 5), (290e6, 2e6, 5e6, 5)],
)
def test_the_search_finds_the_largest_batch(constant, per_sample, floor, most_trials):
    attempt = allocator(int(constant), int(per_sample), int(floor))
    said = []
    found = max_batch._BatchSearch(attempt, 300_000_000, 1, 65536, 0.0, said.append).run()
    assert attempt(found.batch).outcome == OK and attempt(found.batch + 1).outcome == OUT_OF_MEMORY
    assert len(found.trials) == len({t.batch for t in found.trials}) <= most_trials
    assert sum(line.startswith("batch ") for line in said) == len(found.trials)


def test_the_search_without_any_fit_and_without_an_end():
    nothing = max_batch._BatchSearch(allocator(400_000_000, 1), 300_000_000, 1, 64, 0.0, None).run()
    assert nothing.batch == 0 and nothing.predicted is None
    everything = max_batch._BatchSearch(allocator(1, 1), 300_000_000, 1, 64, 0.0, None).run()
    assert everything.batch == 64 and everything.predicted == 64
    uncounted = max_batch._BatchSearch(
        lambda batch: Trial(batch, OK if batch <= 50 else OUT_OF_MEMORY, 0), 300_000_000, 1, 640, 0.0, None
    ).run()
    assert uncounted.batch == 50 and uncounted.predicted is None


def build_wide():
    """Activations of 51 kB a sample, and next to no weights."""
    wide = [layers.RepeatVector(200), layers.Activation("tanh"), layers.Activation("sigmoid")]
    ends = [layers.GlobalAveragePooling1D(), layers.Dense(10)]
    return compiled(keras.Sequential([keras.Input((64,)), *wide, *ends]))


def build_that_crashes():
    os.kill(os.getpid(), signal.SIGSEGV)


def build_that_raises():
    raise KeyError("no such thing")


@pytest.mark.long
def test_find_max_batch_size_in_child_processes():
    said = []
    limit = 60_000_000
    found = ct.find_max_batch_size(
        build_wide, limit, start=64, compress=False, tolerance=0.4, progress=said.append
    )
    fits = [t for t in found.trials if t.outcome == OK]
    assert found.batch == max(t.batch for t in fits) > 128
    assert all(0 < t.total_bytes <= limit for t in fits)
    failed = [t for t in found.trials if t.outcome == OUT_OF_MEMORY]
    assert failed and min(t.batch for t in failed) > found.batch
    assert "limit" in failed[0].detail or "peak" in failed[0].detail
    assert any(line.startswith("predicted: ") for line in said)


def test_a_crash_is_out_of_memory_and_an_error_is_not():
    crashed = run_trial(Job(build_that_crashes, 1, False, None, None))
    assert crashed.outcome == OUT_OF_MEMORY and "SIGSEGV" in crashed.detail
    with pytest.raises(trial.TrialError, match="no such thing"):
        run_trial(Job("test_max_batch:build_that_raises", 1, False, None, None))
    with pytest.raises(ValueError, match="`build` must return a compiled keras.Model. Received: None"):
        trial._try(Job(lambda: None, 1, True, None, None))


def test_an_interrupt_ends_the_child_too(monkeypatch):
    context = multiprocessing.get_context("spawn")
    children = []

    class Interrupted:
        def __init__(self, receiver):
            self.close = receiver.close

        def poll(self, timeout_s):
            children.extend(multiprocessing.active_children())
            raise KeyboardInterrupt

    pipe = context.Pipe
    monkeypatch.setattr(context, "Pipe", lambda duplex: (Interrupted((ends := pipe(duplex))[0]), ends[1]))
    with pytest.raises(KeyboardInterrupt):
        run_trial(Job("time:sleep", 1, False, None, None))
    assert children and not multiprocessing.active_children()


def test_what_find_max_batch_size_refuses(monkeypatch):
    with pytest.raises(ValueError, match="a child process can import"):
        ct.find_max_batch_size(lambda: None, 10**9)
    with pytest.raises(ValueError, match="'module:function'"):
        ct.find_max_batch_size("build_small", 10**9)
    with pytest.raises(ValueError, match="function that returns a model"):
        ct.find_max_batch_size(small_cnn(), 10**9)
    notebook = types.ModuleType("__main__")
    exec("def build(): pass", notebook.__dict__)
    with monkeypatch.context() as patched, pytest.raises(ValueError, match="of a notebook or console"):
        patched.setitem(sys.modules, "__main__", notebook)
        ct.find_max_batch_size(notebook.build, 10**9)
    with pytest.raises(ValueError, match="`start`"):
        ct.find_max_batch_size(build_wide, 10**9, start=9, max_batch=8)
