"""Compressed training beside experiment trackers, offline. They are in the extra `tracking`."""

import pytest
from models import compiled, images, small_cnn

import tf_comptrain as ct

_MISSING = "a tracker is not installed"


def compressed_cnn():
    model = compiled(small_cnn(), jit_compile=False)
    report = ct.compress_model(model)
    return model, report


def test_mlflow_logs_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason=_MISSING)
    from mlflow.tensorflow import autolog  # a failure where it is missing: the extra brings all of it

    mlflow.set_tracking_uri(f"file://{tmp_path / 'runs'}")
    autolog(log_models=False)
    try:
        model, report = compressed_cnn()
        with mlflow.start_run() as run:
            losses = model.fit(*images(32), batch_size=16, epochs=2, verbose=0).history["loss"]
    finally:
        autolog(disable=True)
    found = mlflow.get_run(run.info.run_id).data
    assert found.metrics["loss"] == pytest.approx(losses[-1]) and found.params["batch_size"] == "16"
    assert any(row.storage == "compress" for row in report.rows)


def test_wandb_logs_by_its_callback(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb = pytest.importorskip("wandb", reason=_MISSING)
    from wandb.integration.keras import WandbMetricsLogger

    run = wandb.init(project="tested", dir=tmp_path)
    try:
        model, report = compressed_cnn()
        callbacks = [WandbMetricsLogger(), ct.AdaptiveErrorBound()]
        losses = model.fit(*images(32), batch_size=16, epochs=2, verbose=0, callbacks=callbacks).history[
            "loss"
        ]
        assert dict(run.summary)["epoch/loss"] == pytest.approx(losses[-1])
    finally:
        wandb.finish()
    assert any(row.storage == "compress" for row in report.rows)
