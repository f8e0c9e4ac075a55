"""MemoryLogger: peak, resting level and streams of each epoch."""

import keras
import pytest
import tensorflow as tf
from models import compiled, images

import tf_comptrain as ct
from tf_comptrain.callbacks._peak import TrainingPeak
from tf_comptrain.compression.instrumentation import instrumentation

layers = keras.layers


def network():
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    return compiled(keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x))))


def test_logs_every_epoch_into_the_history():
    model, log = network(), ct.MemoryLogger()
    ct.compress_model(model)
    x, y = images(40, size=32)
    history = model.fit(x, y, batch_size=32, epochs=2, verbose=0, callbacks=[log], validation_data=(x, y))
    assert [r.epoch for r in log.records] == [0, 1]
    for name in ("peak_bytes", "resting_bytes", "stream_bytes"):
        assert history.history[name] == [getattr(r, name) for r in log.records]
    for record in log.records:
        assert record.peak_bytes > record.resting_bytes > 0
    # Of a full batch, not of the epoch's last one with 8 samples.
    last = sum(site.read_state().stream_bytes for site in instrumentation(model).sites().values())
    assert log.records[-1].stream_bytes > 2 * last
    model.fit(x, y, epochs=1, verbose=0, callbacks=[log])
    assert len(log.records) == 1


def test_validation_does_not_count():
    """A validation batch far larger than the training batch."""
    model, log = network(), ct.MemoryLogger()
    x, y = images(256, size=32)
    model.fit(x[:8], y[:8], batch_size=8, epochs=2, verbose=0, callbacks=[log])
    alone = log.records[-1].peak_bytes - log.records[-1].resting_bytes
    model.fit(
        x[:8], y[:8], batch_size=8, epochs=2, verbose=0, callbacks=[log],
        validation_data=(x, y), validation_batch_size=256,
    )  # fmt: skip
    record = log.records[-1]
    assert record.peak_bytes - record.resting_bytes < 3 * alone + 4 * x.nbytes
    assert record.stream_bytes == 0  # a plain model


def test_a_line_per_epoch(capsys):
    model = network()
    x, y = images(8, size=32)
    model.fit(x, y, epochs=2, verbose=0, callbacks=[ct.MemoryLogger(verbose=1)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("MemoryLogger")]
    assert len(lines) == 2
    assert lines[1].startswith("MemoryLogger, epoch 2: peak ") and "MB" in lines[1]


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(0)


def test_a_peak_outlasts_another_ones_start():
    first, second = TrainingPeak(), TrainingPeak()
    first.start()
    with tf.device(ct.memory.device()):
        before = tf.config.experimental.get_memory_info(ct.memory.device())["current"]
        large = tf.zeros([1 << 22])
        del large
        second.start()
    assert first.stop() >= before + (1 << 24) > second.stop()


def test_tensorboard_has_the_report(tmp_path):
    model, log = network(), ct.MemoryLogger(log_dir=tmp_path)
    report = ct.compress_model(model)
    with tf.summary.record_if(False):  # as a training that fails under Keras' TensorBoard leaves it
        model.fit(*images(8, size=32), verbose=0, callbacks=[log])
    (file,) = tmp_path.glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(file))
    (value,) = (value for event in events for value in event.summary.value)
    assert value.tag == "tf_comptrain/report" and value.metadata.plugin_data.plugin_name == "text"
    assert tf.make_ndarray(value.tensor).item().decode() == report.to_markdown()
