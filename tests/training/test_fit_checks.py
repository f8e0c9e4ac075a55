"""What ct.fit refuses before it changes anything, and how it says so."""

import numpy as np
import pytest
from models import compiled
from tensorflow import keras

import tf_comptrain as ct

X, Y = np.ones((4, 3), "float32"), np.zeros(4, int)


@pytest.mark.parametrize("model", [None, 3, keras.layers.Dense(1), keras.Model], ids=str)
def test_what_is_no_model(model):
    with pytest.raises(TypeError, match=r"`model` must be a compiled keras.Model. Received: .* \(of type"):
        ct.fit(model)


def test_not_compiled():
    with pytest.raises(ValueError, match="'net' is not compiled: call model.compile"):
        ct.fit(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="net"), X, Y)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"checkpoint_dir": 3},
            r"`checkpoint_dir` must be the path of a folder.* Received: 3 \(of type int\)",
        ),
        ({"checkpoint_dir": ""}, "`checkpoint_dir` must be the path of a folder.* Received: ''"),
        ({"checkpoint_dir": b"run"}, "`checkpoint_dir` must be the path of a folder.* Received: b'run'"),
        ({"checkpoint_dir": "a\0b"}, "`checkpoint_dir` must be the path of a folder"),
        ({"checkpoint_dir": __file__}, "`checkpoint_dir` must be the path of a folder.* Pass another path"),
        (
            {"callbacks": 3},
            r"`callbacks` must be a list of keras.callbacks.Callback.* in it: 3 \(of type int\)",
        ),
        ({"callbacks": [keras.callbacks.EarlyStopping]}, "Received in it: <class .*EarlyStopping"),
        (
            {"callbacks": [keras.callbacks.BackupAndRestore("b")]},
            "without .*BackupAndRestore.* pass `checkpoint_dir`",
        ),
        ({"verbose": 3}, "`verbose` must be 0, 1 or 2. Received: 3"),
        ({"verbose": None}, "`verbose` must be 0, 1 or 2. Received: None"),
        ({"validation_data": 3}, r"`validation_data` must be \(x, y\).* Received: 3"),
        ({"validation_data": "test"}, r"`validation_data` must be \(x, y\).* Received: 'test'"),
        ({"x": None}, "`x`, `y` and `sample_weight` must be arrays.* Received: NoneType"),
        ({"x": lambda epoch: 3, "y": None}, "must return the tf.data.Dataset of an epoch. Received: int"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_misuses(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    model = compiled(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    before = model.get_weights()
    with pytest.raises((TypeError, ValueError), match=message):
        ct.fit(model, **{"x": X, "y": Y, "verbose": 0, **arguments})
    np.testing.assert_array_equal(model.get_weights()[0], before[0])
    assert not model.optimizer.built and not list(tmp_path.iterdir())


def test_verbose_as_keras_has_it(capsys):
    model = compiled(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    ct.fit(model, X, Y, verbose="auto")
    assert "1/1" in capsys.readouterr().out
