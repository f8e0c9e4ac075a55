"""The two applications: their data, scores and networks; each runs with settings that make it fast."""

import sys
from pathlib import Path

import numpy as np
import pytest
from test_examples import run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "climate"), str(EXAMPLES / "hep")]
import classify  # noqa: E402
import detectors  # noqa: E402
import unet  # noqa: E402


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "fast"),
    [
        ("climate/nowcast.py", "--tile 128 --width 2 --epochs 1 --seeds 1 --count 32"),
        ("hep/classify.py", "--train 64 --test 64 --width 2 --epochs 1 --seeds 2"),
        ("hep/classify.py", "--kind tracks --train 32 --test 32 --width 2 --epochs 1 --batch 16 --seeds 1"),
    ],
)
def test_an_application_compares_four_ways_of_training(script, fast, tmp_path):
    out = run(script, *fast.split(), "--out", str(tmp_path))
    for arm in ("plain", "compressed", "recompute", "offload"):
        assert arm in out
    runs = (tmp_path / "runs.jsonl").read_text()
    assert "MB" in out and list(tmp_path.glob("*.png"))
    assert run(script, *fast.split(), "--out", str(tmp_path)) == out  # nothing is trained again
    assert (tmp_path / "runs.jsonl").read_text() == runs


def test_what_is_forecast_is_ten_minutes_after_what_is_seen():
    (x, y), (x_test, y_test) = unet.load(128)
    assert x.shape[1:] == (128, 128, unet.FRAMES) and y.shape[1:] == (128, 128, 1)
    assert len(x) == 28 * 12 and len(x_test) == 28 * 6 == len(y_test)
    tiles = 12
    np.testing.assert_array_equal(y[0, ..., 0], x[tiles * unet.AHEAD, ..., -1])
    np.testing.assert_array_equal(x[0, ..., 1], x[tiles, ..., 0])


def test_an_untrained_network_is_persistence():
    (x, _), _ = unet.load(128)
    np.testing.assert_allclose(unet.unet(128, 2)(x[:2])[..., 0], x[:2, ..., -1], atol=1e-6)


def test_scores_of_rain():
    truth = np.log1p(np.array([0.0, 1.0, 4.0, 10.0]))
    exact, none = unet.scores(truth, truth), unet.scores(np.zeros(4), truth)
    assert exact["RMSE, mm/h"] == pytest.approx(0, abs=1e-6)
    assert all(exact[name] == 1 and none[name] == 0 for name in exact if name.startswith("IoU"))
    assert none["RMSE, mm/h"] == pytest.approx(np.sqrt((1 + 16 + 100) / 4))


def test_scores_of_a_classifier():
    labels = np.array([1, 1, 1, 1, 0, 0, 0, 0])
    found = classify.scores(np.array([4.0, 3.0, -1.0, -2.0, 3.5, 0.5, -3.0, -4.0]), labels)
    assert found == {"accuracy, %": 50.0, "AUC": 11 / 16, "rejection": 4.0}


def test_the_hep_cnn_layout_is_written_and_read(tmp_path):
    images, labels = detectors.calorimeter(20, size=16)
    detectors.write_hdf5(tmp_path / "events.h5", images, labels)
    events = detectors.read_hdf5(tmp_path / "events.h5")
    assert events.x.shape == (14, 16, 16, 1) and events.x_test.shape == (6, 16, 16, 1)
    np.testing.assert_array_equal(np.concatenate([events.y, events.y_test]), labels)
    np.testing.assert_allclose(np.expm1(events.x[..., 0]), images[:14], rtol=1e-5)


def test_another_layout_is_refused(tmp_path):
    import h5py

    with h5py.File(tmp_path / "events.h5", "w") as file:
        file["data"] = np.zeros(3)
    with pytest.raises(ValueError, match="all_events/hist.*It has: data"):
        detectors.read_hdf5(tmp_path / "events.h5")


def test_sparse_tracks_become_images(tmp_path):
    np.savez(
        tmp_path / "tracks.npz",
        index=np.array([[0, 1, 2], [1, 1, 1], [2, 0, 0]], np.uint8),
        value=np.array([1, 2, 3], np.uint8),
        offset=np.array([0, 2, 3]),
        label=np.array([1, 0], np.uint8),
        shape=np.array([3, 4, 5]),
        n_train=1,
    )
    events = detectors.read_tracks(tmp_path / "tracks.npz")
    assert events.x.shape == (1, 3, 4, 5, 1) and events.x_test.shape == (1, 3, 4, 5, 1)
    assert events.x[0, 0, 1, 2, 0] == pytest.approx(np.log(2)) and events.x_test[
        0, 2, 0, 0, 0
    ] == pytest.approx(np.log(4))
    assert np.count_nonzero(events.x) == 2 and (events.y.tolist(), events.y_test.tolist()) == ([1], [0])


def test_jets_are_background_or_signal(tmp_path):
    x = np.full((3, 24, 24), 0.003, np.float32)
    np.savez(tmp_path / "jets.npz", x_train=x, y_train=[0, 1, 2], x_test=x, y_test=[2, 0, 1])
    events = detectors.read_jets(tmp_path / "jets.npz", 2)
    assert events.x.shape == (2, 24, 24, 1) and events.x.max() == pytest.approx(1)
    assert events.y.tolist() == [0, 1] and events.y_test.tolist() == [1, 0, 1]
