"""The accuracy study's own parts: the baseline codec, what is left to run, batches, intervals, tables."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy"))

import data
import group_quantization
import report
import study
from tensorflow import keras

from tf_comptrain.codecs import State


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("shape", [(3, 16, 16, 5), (2, 4, 4, 7), (4, 100)])
def test_group_quantization(bits, shape):
    codec = group_quantization.GroupQuantization(bits)
    x = tf.random.stateless_normal(shape, seed=(0, bits))
    restored = []
    for _ in range(100):
        through, stream, state = codec.compress(x, tf.zeros(7), 0.1, False)
        restored.append(codec.decompress(stream, tf.shape(x), x.dtype, gate=x).numpy())
    np.testing.assert_array_equal(through, x)
    groups = shape[0] * -(-np.prod(shape[1:]) // group_quantization.GROUP)
    assert int(tf.size(stream)) == groups * (group_quantization.GROUP * bits // 8 + 4)
    assert float(state[5]) == int(tf.size(stream))
    step = (np.ptp(x.numpy())) / (2**bits - 1)
    error = np.array(restored) - x.numpy()
    assert np.abs(error).max() <= 1.02 * step + 0.02  # ends in bfloat16
    assert np.abs(error.mean(0)).max() < 0.2 * step + 0.02  # rounding up or down at random: no bias


@pytest.mark.parametrize("shape", [(4, 6, 6, 5), (32, 7)])
def test_group_quantization_behind_batch_normalization(shape):
    """The gradient is that of plain batch normalization, at the values that come back."""
    codec = group_quantization.GroupQuantization(4)
    keras.utils.set_random_seed(1)
    x, dy = tf.random.normal(shape, 1.0, 2.0), tf.random.normal(shape)
    gamma = tf.random.normal(shape[-1:])
    over = list(range(len(shape) - 1))
    stream = codec.compress(x, tf.zeros([len(State._fields)]), 0.1, False)[1]
    x_hat = codec.decompress(stream, tf.shape(x), x.dtype, dy)
    with tf.GradientTape() as tape:
        tape.watch([x_hat, gamma])
        mean, variance = tf.nn.moments(x_hat, over)
        y = gamma * (x_hat - mean) * tf.math.rsqrt(variance + 1e-3)
    wanted = tape.gradient(y, [x_hat, gamma], dy)
    dx, dgamma, dbeta = codec.batch_norm_gradient(stream, dy, gamma, mean, tf.math.rsqrt(variance + 1e-3))
    for ours, plain in zip((dx, dgamma, dbeta), (*wanted, tf.reduce_sum(dy, over))):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-5)


def test_what_is_left_to_run_comes_seed_by_seed():
    task = study.PROTOCOLS["smoke"].tasks[0]._replace(methods=("plain", "lossless"))
    protocol = study.Protocol((task,), (1, 2), "")
    runs = [{"network": "cnn", "method": "plain", "seed": 1}]
    left = [(method, seed) for _, method, seed in study.missing(protocol, runs, None, None)]
    assert left == [("lossless", 1), ("plain", 2), ("lossless", 2)]
    assert list(study.missing(protocol, runs, ["vgg"], None)) == []


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"seed": 1}\n{"seed": 2, "acc')
    assert study.read(path) == [{"seed": 1}]


def test_batches_depend_on_the_seed_alone():
    x = np.arange(64 * 8 * 8 * 3, dtype="uint8").reshape(64, 8, 8, 3)
    images = data.Images(x, np.arange(64), x, np.arange(64))
    first, again, other = (data.Batches(images, 16, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[0][0], again[0][0])
    assert (first[0][1] != other[0][1]).any()
    labels = [first[i][1] for i in range(len(first))]
    assert sorted(np.concatenate(labels)) == list(range(64))
    first.on_epoch_end()
    assert (first[0][1] != labels[0]).any()


def test_paired_interval():
    """Against R: t.test(c(1, 2, 4)) gives 2.33 [-1.46, 6.13]."""
    assert report.paired([1.0, 2.0, 4.0]) == "+2.33 [-1.46, +6.13]"
    assert report.paired([1.0]) == "+1.00"


def test_the_report_replaces_its_own_part_only(tmp_path):
    (tmp_path / "accuracy.md").write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    task = {"network": "cnn", "data": "fashion", "train": 640, "test": 500, "epochs": 2, "batch": 64}
    runs = []
    for method, accuracy in (("plain", 0.5), ("lossless", 0.6)):
        for seed in (1, 2):
            runs.append(
                {"network": "cnn", "method": method, "seed": seed, "task": task, "accuracy": accuracy + seed / 100,
                 "val_accuracy": [0.4, accuracy], "conv_ratio": 2.0, "conv_ratio_epochs": [2.0, 2.0], "bounds": [],
                 "cpu_s": 0.1, "peak_bytes": 100 if seed == 1 else None, "saved_bytes": 10, "saved_plain_bytes": 20}
            )  # fmt: skip
    (tmp_path / "two-core.jsonl").write_text("\n".join(map(json.dumps, runs)))
    results = {name: study.read(tmp_path / f"{name}.jsonl") for name in study.PROTOCOLS}
    report.write(results, tmp_path, study.PROTOCOLS)
    page = (tmp_path / "accuracy.md").read_text()
    assert page.startswith("before\n") and page.endswith("after\n") and "old" not in page
    assert "| lossless | 2 | 61.50 ± 0.71 | +10.00 [+10.00, +10.00] | 2.0 | 2.0 | 0.0 | 1.0 | 1.00 |" in page
    assert (tmp_path / "images" / "accuracy_two-core_cnn.png").exists()
