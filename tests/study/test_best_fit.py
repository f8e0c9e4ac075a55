"""The policy that fits best: the choice, its errors, and what compress_model makes of it."""

import itertools

import numpy as np
import pytest
import study_nets as nets

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.study import trainings
from tf_comptrain.study.folder import Folder
from tf_comptrain.study.grid import PLAIN_TRAINING, TENSORS, TRAINING, Candidate, Cell
from tf_comptrain.study.policy_fit import SettingEffect, choose

BOUNDS = (0.1, 0.2, 0.4)
# Of each tensor: class, bytes at bound 0.1, gradient error at bound 1.
TENSORS_OF_NET = {"a": ("norm", 4000, 0.1), "b": ("convolution", 1000, 1.0), "c": ("convolution", 3000, 0.5)}


def training(metric, sample_bytes):
    """The row of a training whose memory grows by so much a sample, at a batch of 16."""
    return {
        "metric": metric, "history": [metric], "step_s": 1.0, "saved_plain_bytes": 1600,
        "saved_bytes": 16 * sample_bytes, "peak_bytes": 1000 + 16 * sample_bytes,
        "half_batch_peak_bytes": 1000 + 8 * sample_bytes, "timeline": [0, 8 * sample_bytes, 16 * sample_bytes],
    }  # fmt: skip


def written(folder, codecs=("plane", "rans"), worse=0.0, seeds=(0,), slope_of_a=0.1):
    """A study's folder, as if it had been measured: rans holds a fifth less; `worse`: plane's metric at 0.4 sigma."""
    there = Folder(folder)
    identity = {"networks": {"network": "x"}, "data": {}, "metric": {"network": "val_accuracy"}}
    there.begin({**identity, "epochs": 1, "batch_size": 16}, {})
    there.append(Cell(TRAINING, "network", PLAIN_TRAINING, "", 0), [training(0.9, 100)], 1.0)
    for codec, bound in itertools.product(codecs, BOUNDS):
        setting = Candidate(codec, "sigma", bound)
        rows = []
        for name, (kind, size, slope) in TENSORS_OF_NET.items():
            slope = slope_of_a if name == "a" else slope
            held = size * (1 - np.log2(bound / 0.1) / 8) * (0.8 if codec == "rans" else 1)
            rows.append(
                {
                    "tensor": name, "tensor_class": kind, "value_bytes": 8 * size, "held_bytes": held, "ratio": 8.0,
                    "violations": 0, "gradient_error": slope * bound, "gradient_cosine": 1.0,
                    "encode_gb_s": 1.0 if codec == "plane" else 0.5, "decode_gb_s": 1.0,
                }
            )  # fmt: skip
        together = {**rows[0], "tensor": "all", "tensor_class": "all"}
        for seed in seeds:
            there.append(Cell(TENSORS, "network", setting, "late", seed), [*rows, together], 1.0)
        metric = 0.9 - (worse if (codec, bound) == ("plane", 0.4) else 0)
        there.append(Cell(TRAINING, "network", setting, "", 0), [training(metric, 50)], 1.0)
    return ct.Study(folder)


def test_loose_where_it_costs_little_and_tight_where_it_counts(tmp_path):
    fit = ct.best_fit(written(tmp_path), tolerance=0.15)
    assert fit.policy.classes == {
        "norm": ct.Setting("rans", "sigma", 0.4),
        "convolution": ct.Setting("rans", "sigma", 0.1),
    }
    assert fit.gradient_error <= 0.15 and fit.value_bytes == 64000
    assert fit.single == Candidate("rans", "sigma", 0.1) and fit.single_bytes == 6400
    assert fit.saving == pytest.approx(1 - fit.held_bytes / 6400) and fit.saving > 0.1
    assert "convolution  rans 0.1 sigma" in str(fit)


def test_of_single_tensors_it_saves_more(tmp_path):
    study = written(tmp_path)
    by_class, by_tensor = (ct.best_fit(study, 0.3, per=per) for per in ("class", "tensor"))
    assert by_tensor.held_bytes < by_class.held_bytes
    assert set(by_tensor.policy.tensors) == set(TENSORS_OF_NET) and not by_tensor.policy.classes


def test_tensors_of_two_seeds_count_as_those_of_one(tmp_path):
    one, two = (ct.best_fit(written(tmp_path / str(len(s)), seeds=s), 0.15) for s in ((0,), (0, 1)))
    assert str(one) == str(two)


def test_gradients_that_are_zero_fit_nothing(tmp_path):
    with pytest.raises(ValueError, match="some of 'network' are zero, or not finite"):
        ct.best_fit(written(tmp_path, slope_of_a=np.nan), 0.15)


@pytest.mark.parametrize(
    ("metric", "is_higher_better"),
    [
        ("val_accuracy", True), ("val_acc", True), ("val_auc_2", True), ("val_binary_io_u", True),
        ("mean_io_u_1", True), ("val_cosine_similarity", True), ("r2_score", True), ("f1_score", True),
        ("val_true_positives", True), ("sensitivity_at_specificity", True), ("val_loss", False), ("val_mae", False),
        ("val_acceleration_mae", False), ("false_positives", False), ("val_perplexity", False),
    ],
)  # fmt: skip
def test_which_metrics_are_better_the_higher(metric, is_higher_better):
    assert trainings.is_higher_better(metric) == is_higher_better


def test_the_fastest_is_another_codec(tmp_path):
    fit = ct.best_fit(written(tmp_path), 0.3, objective="time")
    assert {setting.codec for _, setting in fit.policy.settings()} == {"plane"}


def test_settings_whose_trainings_are_worse_are_left_out(tmp_path):
    study = written(tmp_path, ["plane"], worse=0.05)
    loose, strict = (ct.best_fit(study, 10.0, metric_tolerance=allowed) for allowed in (0.1, 0.01))
    assert {setting.bound for _, setting in loose.policy.settings()} == {0.4}
    assert {setting.bound for _, setting in strict.policy.settings()} == {0.2}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"tolerance": 0.01}, "`tolerance` must be at least 0.112"),
        ({"tolerance": 0}, "`tolerance` must be a number above 0"),
        ({"per": "layer"}, "`per` must be one of 'class', 'tensor'"),
        ({"objective": "energy"}, "`objective` must be one of"),
        ({"network": "other"}, "`network` must be one of 'network'"),
        ({"metric_tolerance": -1}, "`study` must have tensor cells of 'network'"),
    ],
)
def test_bad_arguments_are_named(arguments, problem, tmp_path):
    with pytest.raises(ValueError, match=problem):
        ct.best_fit(written(tmp_path), **arguments)


def test_the_choice_is_near_the_best_of_all():
    random = np.random.default_rng(0)
    for _ in range(20):
        groups = [
            [SettingEffect(None, *random.uniform(1, 100, 2), random.uniform(0, 1) ** 4) for _ in range(5)]
            for _ in range(4)
        ]
        limit = 0.4
        sums = [
            sum(option.held_bytes for option in options)
            for options in itertools.product(*groups)
            if sum(option.squared_error for option in options) <= limit
        ]
        found = choose(groups, limit)
        if found is None:
            assert not sums
        else:
            assert sum(option.squared_error for option in found) <= limit
            assert min(sums) <= sum(option.held_bytes for option in found) <= 1.6 * min(sums)


@pytest.mark.long
def test_a_model_follows_the_policy_of_its_study(tmp_path):
    """Per tensor, by names: those of the study are those that a model has in training."""
    study = ct.impact_study(
        nets.build, nets.data, ["plane"], bounds=(0.05, 0.4), stages=["late"], folder=tmp_path, epochs=1, batch_size=16,
        progress=False,
    )  # fmt: skip
    errors = [row["gradient_error"] for row in study.summary()]
    fit = ct.best_fit(study, tolerance=float(np.mean(errors)), per="tensor")
    assert len({setting.bound for _, setting in fit.policy.settings()}) == 2  # neither bound for all
    fit.write(tmp_path / "policy.json")
    with _keras.names_anew():
        model = nets.build()
    ct.compress_model(model, policy=tmp_path / "policy.json")
    model.fit(*nets.data()[0], verbose=0)
    sites = instrumentation(model).sites()
    assert {name: site.bound.value for name, site in sites.items()} == {
        name: setting.bound for name, setting in fit.policy.tensors.items()
    }
