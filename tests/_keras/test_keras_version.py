"""`_keras/version.py`: which Keras this is."""

import keras
import pytest

from tf_comptrain import _keras
from tf_comptrain._keras import version


def test_this_is_keras_3(monkeypatch):
    assert keras.__version__.startswith("3.") == _keras.KERAS_3
    _keras.require_keras_3("A sweep", "Leave it out")
    monkeypatch.setattr(version, "KERAS_3", False)
    with pytest.raises(RuntimeError, match=r"A sweep needs Keras 3.*Leave it out, or TensorFlow 2\.16"):
        _keras.require_keras_3("A sweep", "Leave it out")
