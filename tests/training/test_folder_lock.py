"""Two trainings at a time do not share a folder."""

import errno
import subprocess
import sys

import numpy as np
import pytest
from models import compiled
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.training import folder_lock

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def train(folder, *callbacks):
    model = compiled(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="net"))
    x, y = np.ones((4, 3), "float32"), np.zeros(4, int)
    return ct.fit(model, x, y, checkpoint_dir=folder, callbacks=list(callbacks), verbose=0)


def test_a_second_training_in_the_folder_of_a_first_is_refused(tmp_path):
    folder, refusals = tmp_path / "run", []

    def second(epoch):
        for other in (folder, tmp_path / "other"):
            try:
                train(other)
            except RuntimeError as refusal:
                refusals.append(str(refusal))

    assert train(folder, keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: second(epoch)))
    (told,) = refusals
    assert "`checkpoint_dir` must be of one training at a time" in told
    assert f"Received: {str(folder)!r}, where another ct.fit is training" in told
    assert told.endswith("or pass another `checkpoint_dir`.")
    train(folder)  # the first has ended


def test_the_folder_of_a_process_that_was_killed_is_free(tmp_path):
    train(tmp_path)
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "training.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(RuntimeError, match="of one training at a time"):
            train(tmp_path)
        process.kill()
    train(tmp_path)


def test_a_training_that_was_interrupted_lets_go_of_its_folder(tmp_path):
    def stop(batch, logs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, keras.callbacks.LambdaCallback(on_train_batch_end=stop))
    train(tmp_path)


@pytest.mark.parametrize("missing", ["file system", "permission"])
def test_where_nothing_can_be_locked_trainings_go_on(tmp_path, monkeypatch, missing):
    def fails(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    if missing == "file system":
        monkeypatch.setattr(folder_lock.fcntl, "flock", fails)
    else:
        (tmp_path / "training.lock").mkdir()
    with folder_lock.held(tmp_path):
        train(tmp_path)
    assert (tmp_path / "training.ckpt").exists()
