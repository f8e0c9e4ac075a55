"""Compressed training beside what else users have in their scripts."""

import keras_tuner
import numpy as np
import pytest
import tensorflow as tf
from models import compiled, images, small_cnn
from tensorflow import keras

import tf_comptrain as ct


@pytest.fixture
def batches():
    x, y = images(64)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(16)


def compressed_cnn():
    model = compiled(small_cnn(), jit_compile=False)
    report = ct.compress_model(model)
    assert report.obstacle is None and any(row.storage == "compress" for row in report.rows)
    return model


def test_stock_callbacks(batches, tmp_path):
    model = compressed_cnn()
    history = model.fit(
        batches,
        validation_data=batches,
        epochs=3,
        verbose=0,
        callbacks=[
            keras.callbacks.TensorBoard(
                tmp_path / "board", histogram_freq=1, write_graph=True, update_freq=1
            ),
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
            keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True),
            keras.callbacks.BackupAndRestore(tmp_path / "backup"),
            keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0),
            keras.callbacks.EarlyStopping(patience=9),
            keras.callbacks.TerminateOnNaN(),
        ],
    )
    assert len(history.history["loss"]) == 3 and history.history["loss"][-1] < history.history["loss"][0]
    assert history.history["learning_rate"][-1] < history.history["learning_rate"][0]
    assert any((tmp_path / "board" / "train").iterdir())
    loaded = keras.models.load_model(tmp_path / "best.keras")
    x, _ = images(8)
    best = int(np.argmin(history.history["val_loss"]))
    assert best == 2  # the last: its weights are the model's
    np.testing.assert_allclose(loaded(x), model(x), atol=1e-5)


@pytest.mark.long
def test_data_service(batches):
    dispatcher = tf.data.experimental.service.DispatchServer()
    address = dispatcher.target.split("://")[1]
    worker = tf.data.experimental.service.WorkerServer(
        tf.data.experimental.service.WorkerConfig(dispatcher_address=address)
    )
    served = batches.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.OFF, service=dispatcher.target
        )
    )
    there = compressed_cnn().fit(served, epochs=2, verbose=0).history["loss"]
    here = compressed_cnn().fit(batches, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(there, here, rtol=0.02)
    del worker


def test_a_loaded_saved_model_is_a_layer(tmp_path):
    """What is inside of it stays as it is; what is around it is compressed."""
    block = keras.Sequential([keras.Input((16, 16, 8)), keras.layers.Conv2D(4, 3, activation="tanh")])
    block.export(tmp_path / "block", verbose=False)

    def losses(compress):
        keras.utils.set_random_seed(0)
        x, y = images(32)
        inputs = keras.Input(x.shape[1:])
        wide = keras.layers.Conv2D(8, 3, padding="same", activation="gelu")(inputs)
        loaded = keras.layers.TFSMLayer(tmp_path / "block", call_endpoint="serve", trainable=True)
        outputs = keras.layers.Dense(10)(keras.layers.GlobalAveragePooling2D()(loaded(wide)))
        # Keras makes no slots of a loaded variable, whose name ends in ":0".
        model = compiled(keras.Model(inputs, outputs), keras.optimizers.SGD(0.05), jit_compile=False)
        assert len(model.trainable_weights) == 6
        if compress:
            report = ct.compress_model(model)
            assert report.obstacle is None
        found = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0).history["loss"]
        return found, [weight.numpy() for weight in loaded.trainable_weights]

    (plain, before), (ours, after) = losses(False), losses(True)
    np.testing.assert_allclose(ours, plain, rtol=0.01)
    for a, b in zip(after, before):
        np.testing.assert_allclose(a, b, atol=0.01)


@pytest.mark.long
def test_a_tuner_chooses_the_bound(batches, tmp_path):
    def build(parameters):
        model = compiled(small_cnn(), jit_compile=False)
        ct.compress_model(model, error_bound=parameters.Choice("error_bound", [0.01, 0.1]))
        return model

    tuner = keras_tuner.GridSearch(build, objective="val_loss", directory=tmp_path, overwrite=True)
    tuner.search(batches, validation_data=batches, epochs=1, verbose=0)
    tried = {trial.hyperparameters.get("error_bound"): trial.score for trial in tuner.oracle.trials.values()}
    assert set(tried) == {0.01, 0.1} and np.isfinite([*tried.values()]).all()
