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
import radar  # noqa: E402
import recoils  # noqa: E402
import unet  # noqa: E402


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "fast"),
    [
        (
            "climate/nowcast.py",
            "--tile 128 --width 2 --epochs 1 --seeds 1 --count 32 --arms plain compressed",
        ),
        ("hep/classify.py", "--train 64 --test 64 --width 2 --epochs 1 --seeds 2"),
        (
            "hep/recoils.py",
            "--train 64 --test 64 --points 32 --small-points 16 --epochs 1 --batch 16 --seeds 1",
        ),
        ("hep/classify.py", "--kind tracks --train 32 --test 32 --width 2 --epochs 1 --batch 16 --seeds 1"),
    ],
)
def test_an_application_compares_ways_of_training(script, fast, tmp_path):
    out = run(script, *fast.split(), "--out", str(tmp_path))
    for arm in (
        ("plain", "compressed") if "--arms" in fast else ("plain", "compressed", "recompute", "offload")
    ):
        assert arm in out
    runs = (tmp_path / "runs.jsonl").read_text()
    assert "MB" in out and ("recoils" in script or list(tmp_path.glob("*.png")))
    assert run(script, *fast.split(), "--out", str(tmp_path)) == out  # nothing is trained again
    assert (tmp_path / "runs.jsonl").read_text() == runs


@pytest.fixture(scope="module")
def moving_rain(tmp_path_factory):
    """Showers that move by two pixels down and one to the left from image to image; a file without places."""
    rng = np.random.default_rng(0)
    showers = np.where(rng.random((80, 80)) > 0.8, 200, 0).repeat(4, 0).repeat(4, 1)  # tenths of mm/h
    images = np.stack([np.roll(showers, (2 * k, -k), (0, 1))[60:252, 60:252] for k in range(12)])
    file = tmp_path_factory.mktemp("rain") / "rain.npz"
    np.savez(
        file, train=images.astype(np.uint16), test=images.astype(np.uint16), time=np.arange(12).astype(str)
    )
    return radar.load(file, "test")


def test_what_is_forecast_is_ten_minutes_after_what_is_seen(moving_rain):
    times = 12 - radar.FRAMES + 1 - radar.AHEAD
    assert moving_rain.seen.shape == (times, 192, 192, radar.FRAMES)
    assert moving_rain.coming.shape == moving_rain.last.shape == (times, 192, 192)
    assert moving_rain.times == ["3", "4", "5", "6"] and moving_rain.latitude is None
    shift = np.s_[2 * radar.AHEAD :, : -radar.AHEAD], np.s_[: -2 * radar.AHEAD, radar.AHEAD :]
    np.testing.assert_array_equal(moving_rain.coming[0][shift[0]], moving_rain.last[0][shift[1]])


def test_rain_is_moved_on_to_where_it_comes(moving_rain):
    inside = np.s_[0, 48:-48, 48:-48]
    truth = radar.exceeds(moving_rain.coming[inside])
    for frame in range(radar.FRAMES):
        found = radar.scores(radar.exceeds(moving_rain.seen[(*inside, frame)]), truth)
        assert min(found.values()) > 0.8
    assert max(radar.scores(radar.exceeds(moving_rain.last[inside]), truth).values()) < 0.4


def test_tiles_lie_side_by_side(moving_rain):
    x, y = radar.tiles(moving_rain, 64)
    assert x.shape == (4 * 9, 64, 64, radar.FRAMES) and y.shape == (4 * 9, 64, 64, len(radar.THRESHOLDS))
    np.testing.assert_array_equal(x[4 * 5 + 2], moving_rain.seen[2, 64:128, 128:192])
    np.testing.assert_array_equal(y[4 * 5 + 2], radar.exceeds(moving_rain.coming[2, 64:128, 128:192]))


def test_an_untrained_network_is_advection(moving_rain):
    x, _ = radar.tiles(moving_rain, 64)
    logits = unet.unet(64, 2)(x[:2]).numpy()
    np.testing.assert_array_equal(logits > 0, radar.exceeds(x[:2, ..., -1]) > 0)


def test_scores_of_rain():
    truth = radar.exceeds(np.log1p(np.array([0.0, 1.0, 4.0, 10.0])))
    np.testing.assert_array_equal(truth, [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1]])
    assert radar.scores(truth, truth) == {"CSI 1 mm/h": 1, "CSI 4 mm/h": 1, "CSI 8 mm/h": 1}
    late = np.roll(truth, 1, 0)  # one hit of each and one false alarm and one miss, where two are
    assert radar.scores(late, truth) == {
        "CSI 1 mm/h": 0.5,
        "CSI 4 mm/h": pytest.approx(1 / 3),
        "CSI 8 mm/h": 0,
    }


def test_cuts_are_where_most_is_hit():
    logits = np.linspace(-2, 0.5, 26)[:, None].repeat(3, 1)
    np.testing.assert_allclose(radar.best_cuts(logits, logits >= [[-1, 0, 0.4]]), [-1, 0, 0.4], atol=0.1)


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


def test_sparse_tracks_become_points(tmp_path):
    np.savez(
        tmp_path / "tracks.npz",
        index=np.array([[0, 4, 2], [4, 4, 2], [1, 1, 1], [2, 0, 0], [6, 0, 0], [2, 0, 4]], np.uint8),
        value=np.array([3, 1, 7, 7, 7, 7], np.uint8),
        offset=np.array([0, 2, 3, 6]),
        label=np.array([1, 0, 1], np.uint8),
        n_train=2,
    )
    events = detectors.read_points(tmp_path / "tracks.npz", most=2)
    assert events.x.shape == (2, 2, 5) and events.x_test.shape == (1, 2, 5) and events.y.tolist() == [1, 0]
    # From the charge's centre, (1, 4, 2), on, in units of four voxels.
    np.testing.assert_allclose(
        events.x[0], [[-0.25, 0, 0, 3 / 7 - 1, 1], [0.75, 0, 0, 1 / 7 - 1, 1]], rtol=1e-5
    )
    np.testing.assert_allclose(events.x[1], [[0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], atol=1e-6)
    assert events.x_test[..., 4].all()  # of three points two are drawn


def test_skewness_tells_which_end_is_dense():
    """Of places 0, 1, 1, 1, 2, 6, and of these from the other end, with the same charge each."""
    places = np.zeros((6, 3), int)
    places[:, 0] = [0, 1, 1, 1, 2, 6]
    points = detectors.as_points([places, 6 - places], [np.ones(6, int)] * 2, most=8)
    deviations = places[:, 0] - places[:, 0].mean()
    expected = np.mean(deviations**3) / np.mean(deviations**2) ** 1.5
    np.testing.assert_allclose(detectors.skewness(points), [-expected, expected], rtol=1e-4)


def test_points_that_are_not_there_do_not_count():
    model = recoils.pointnet(8, 4)
    x = np.random.default_rng(0).normal(size=(2, 8, 5)).astype("float32")
    x[..., 4] = 0
    x[:, :5, 4] = 1
    other = x.copy()
    other[:, 5:, :4] = 9
    np.testing.assert_allclose(model(x), model(other), rtol=1e-5)


def test_jets_are_background_or_signal(tmp_path):
    x = np.full((3, 24, 24), 0.003, np.float32)
    np.savez(tmp_path / "jets.npz", x_train=x, y_train=[0, 1, 2], x_test=x, y_test=[2, 0, 1])
    events = detectors.read_jets(tmp_path / "jets.npz", 2)
    assert events.x.shape == (2, 24, 24, 1) and events.x.max() == pytest.approx(1)
    assert events.y.tolist() == [0, 1] and events.y_test.tolist() == [1, 0, 1]
