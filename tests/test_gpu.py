"""What needs a GPU: skipped, and said so, where there is none."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, images, small_cnn

import tf_comptrain as ct
from tf_comptrain.model import instrumentation

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="there is no GPU here")
X, Y = images(32)


def test_keras_default_compresses():
    model = compiled(small_cnn())
    report = ct.compress_model(model)
    assert model.jit_compile and report.obstacle is None
    losses = model.fit(X, Y, batch_size=8, epochs=4, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    assert any(site.read_state().stream_bytes for site in instrumentation(model).sites().values())


def test_without_xla_the_report_says_why_it_is_plain():
    model = compiled(small_cnn(), jit_compile=False)
    assert "GPU" in ct.compress_model(model).obstacle
    model.train_on_batch(X[:8], Y[:8])


def test_codecs_write_the_cpu_bytes():
    subprocess.run([sys.executable, str(ROOT / "tools/build_native.py"), "gpu", "100", "0"], check=True)
