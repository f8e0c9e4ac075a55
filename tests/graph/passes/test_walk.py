"""The picture of docs/design.md: from `fit` to a restored tensor."""

import re
import traceback
from pathlib import Path

import numpy as np
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import storage

PACKAGE = Path(ct.__file__).parent
PICTURE = re.compile(r"^    [|v]  \d  (\S+)\s+(\S+)", re.MULTILINE)


def test_eight_calls_lead_from_fit_to_a_restored_tensor(monkeypatch):
    restore, walks = storage.Held.restore, []

    def noted(self, gate):
        walks.append(
            [frame for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(PACKAGE)]
        )
        return restore(self, gate)

    monkeypatch.setattr(storage.Held, "restore", noted)
    layers = [keras.layers.Dense(256, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((128,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    ct.compress_model(model)
    model.fit(np.zeros((32, 128)), np.zeros((32, 1)), verbose=0)
    drawn = PICTURE.findall((PACKAGE.parent / "docs" / "design.md").read_text())
    walked = [(str(Path(f.filename).relative_to(PACKAGE)), f.name) for f in walks[0]]
    begin = walked.index(drawn[0])  # what watches the first step of a fit stands before it
    assert [*walked[begin:], ("storage/held.py", "restore")] == drawn and len(drawn) == 8
