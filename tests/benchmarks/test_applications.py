"""Models of keras.applications: no tensor that is kept, and the losses of plain Keras when the bound is tight.

Three of them; benchmarks/models/applications.py has them all.
"""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "models"))

import applications


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "steps"), [("ConvNeXtTiny", 0), ("EfficientNetV2B0", 0), ("MobileNetV3Small", 3)]
)
def test_trains_as_plain_keras_with_no_unknown_layer(name, steps):
    entry = applications.compare(name, steps, batch=4, controls=False)
    assert not entry["kept"] and entry["tensors_held"] > 30
    assert len(entry["plain"]) == steps and applications.difference(entry) < applications.TOLERANCE
    assert len({round(loss, 6) for loss in entry["plain"]}) == steps  # it trains


def test_the_table_reads_the_file(tmp_path):
    assert len(applications.MODELS) >= 38
    path = tmp_path / "lines.jsonl"
    entry = {
        "image": 32,
        "parameters": 1e6,
        "tensors_held": 5,
        "kept": [],
        "plain": [1.0, 2.0],
        "rounded": [1.0, 2.02],
        "fused": [1.0, 2.0],
        "compressed": [1.0, 2.1],
    }
    path.write_text("")
    assert applications.done(path, 2) == {}
    path.write_text(json.dumps({"model": "VGG16", **entry}) + "\n")
    assert applications.done(path, 3) == {}
    assert applications.table(applications.done(path, 2)).endswith(
        "| VGG16 | 32 | 1.0 M | 5 | 0 | 1.0000, 2.0000 | 5.0e-02 | 0.0e+00 | 1.0e-02 |"
    )
