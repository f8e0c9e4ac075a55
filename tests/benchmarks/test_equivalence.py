"""The accuracy benchmark's parts: the sequential rule, pairs, what is left to run, report, data, the baseline codec."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "accuracy"))

import arms
import data
import equivalence
import pairs
import report
import sequential
import training
from sequential import Look, Rule, verdict
from tasks import ARM_NAMES, TASKS, Orders, Task

RULE = Rule(margin=0.3, fewest=20)
TASK = Task("cnn3-grey", "fashion", 64, 2, 4, 0.05, 1, Orders(2, 2), RULE, "a network")
MACHINE = {"kind": "x86_64 avx2", "commit": "abc", "version": "0.1.0", "tensorflow": "2.21.0"}


def verdicts(effect, scatter, trials=1000):
    """The rule's last words about differences drawn with that mean and scatter, and how many it took."""
    random = np.random.default_rng(1)
    draws = random.normal(effect, scatter, (trials, RULE.looks[-1].seeds)).tolist()
    found = [verdict(differences, RULE) for differences in draws]
    return [v.word for v in found], [v.seeds for v in found]


def test_the_alphas_of_the_looks_add_up():
    assert sum(look.alpha for look in sequential.LOOKS) == pytest.approx(0.05)


def test_interval():
    """Against R: t.test(c(1, 2, 4)) gives 2.33 [-1.46, 6.13]."""
    mean, half = sequential.interval([1.0, 2.0, 4.0])
    assert (round(mean - half, 2), round(mean + half, 2)) == (-1.46, 6.13)
    assert sequential.interval([1.0]) == (1.0, float("inf"))


@pytest.mark.parametrize("scatter", [0.3, 0.8, 3.0])
def test_no_change_is_called_different_in_fewer_than_5_of_100(scatter):
    words, _ = verdicts(0.0, scatter)
    assert words.count("different") / len(words) < 0.05


@pytest.mark.parametrize("scatter", [0.1, 0.4, 0.8])
def test_a_change_of_the_margin_is_called_equivalent_in_fewer_than_5_of_100(scatter):
    words, _ = verdicts(0.3, scatter)
    assert words.count("equivalent") / len(words) < 0.05


def test_where_the_rule_stops():
    words, seeds = verdicts(0.0, 0.2)
    assert words.count("equivalent") > 0.98 * len(words) and set(seeds) <= {5, 10, 20, 30}
    assert seeds.count(20) > 0.9 * len(seeds)  # never before the fewest that it asks for
    words, seeds = verdicts(-2.0, 0.3)
    assert set(words) == {"different"} and np.mean(seeds) < 11
    words, seeds = verdicts(0.0, 5.0)
    assert words.count("undecided") > 0.95 * len(words) and seeds.count(45) > 0.95 * len(words)


def test_a_verdict_stays_whatever_comes_behind_it():
    found = verdict([-2.0, -2.1, -1.9, -2.2, -1.8], RULE)
    assert (found.word, found.seeds, found.final) == ("different", 5, True)
    assert verdict([-2.0, -2.1, -1.9, -2.2, -1.8, *[9.0] * 40], RULE) == found


def test_between_looks_nothing_is_decided():
    found = verdict([-2.0, -2.1, -1.9, -2.2], RULE)
    assert (found.word, found.final, found.alpha) == ("undecided", False, 0.002)
    assert verdict([], RULE).seeds == 0
    small = Rule(0.3, 2, (Look(2, 0.05),))
    assert verdict([0.0, 0.01], small).word == "equivalent"
    assert sequential.next_look(5, RULE) == 10 and sequential.next_look(45, RULE) == 45


def record(arm, seed, order, metric, kind=MACHINE["kind"], task="smoke"):
    return {
        "task": task, "arm": arm, "seed": seed, "order": order, "metric": metric, "setting": TASK.setting(),
        "machine": {**MACHINE, "kind": kind}, "conv_ratio": 1.0 if arm == "plain" else 8.0, "step_cpu_s": 0.1,
        "cpu_s": 36.0, "wall_s": 30.0, **({"saved_bytes": 80 if arm == "plain" else 10} if seed == 1 else {}),
    }  # fmt: skip


def test_a_difference_is_between_the_means_of_the_orders():
    runs = [record("plain", 1, 0, 60.0), record("plain", 1, 1, 61.0)]
    assert pairs.differences(runs, TASK, "default") == {}
    runs += [record("default", 1, 0, 60.0)]
    assert pairs.differences(runs, TASK, "default") == {}  # an order is not there yet
    runs += [record("default", 1, 1, 60.4)]
    assert pairs.differences(runs, TASK, "default") == {1: pytest.approx(-0.3)}
    text = TASK._replace(data="text")
    assert pairs.differences(runs, text, "default") == {1: pytest.approx(-100 * 0.3 / 60.5)}


def test_pairs_are_of_one_kind_of_machine():
    runs = [record("plain", 1, order, 60.0) for order in (0, 1)]
    runs += [record("default", 1, order, 61.0, kind="x86_64 amx") for order in (0, 1)]
    assert pairs.differences(runs, TASK, "default") == {}
    left = list(pairs.missing(runs, TASK, "default", "x86_64 amx"))
    assert left == [("plain", 0), ("plain", 1)]
    runs += [record("plain", 1, order, 60.5, kind="x86_64 amx") for order in (0, 1)]
    assert pairs.differences(runs, TASK, "default") == {1: pytest.approx(0.5)}
    assert list(pairs.missing(runs, TASK, "default", "aarch64")) == []


def test_seeds_count_up_to_the_first_that_is_not_there():
    assert pairs.in_order({}) == [] and pairs.in_order({2: 0.1}) == []
    assert pairs.in_order({1: 0.1, 2: 0.2, 4: 0.4}) == [0.1, 0.2]


def test_a_line_that_was_cut_off_costs_its_run_only(tmp_path):
    path = tmp_path / "results" / "runs.jsonl"
    pairs.append(path, {"seed": 1})
    with open(path, "a") as file:
        file.write('{"seed": 2, "acc')
    assert pairs.read(path) == [{"seed": 1}]
    pairs.append(path, {"seed": 3})
    assert pairs.read(path) == [{"seed": 1}, {"seed": 3}]


def test_what_is_left_comes_seed_by_seed_and_stops_with_the_verdict(monkeypatch):
    monkeypatch.setitem(TASKS, "smoke", TASK)

    def wanted(runs, arms=("default", "lossless")):
        return list(equivalence.wanted_runs(runs, ["smoke"], arms, MACHINE["kind"]))

    left = wanted([])
    assert len(left) == 5 * 6 and [run.seed for run in left] == sorted(run.seed for run in left)
    assert [(run.arm, run.order) for run in left[:6]] == [
        ("plain", 0), ("plain", 1), ("default", 0), ("default", 1), ("lossless", 0), ("lossless", 1)
    ]  # fmt: skip
    runs = [record("plain", 1, 0, 60.0), record("default", 1, 0, 60.0)]
    assert [(run.arm, run.order) for run in wanted(runs)[:3]] == [
        ("plain", 1),
        ("default", 1),
        ("lossless", 0),
    ]
    runs = [
        record(arm, seed, order, value + seed / 100 * (arm == "default"))
        for seed in range(1, 6)
        for arm, value in (("plain", 60.0), ("default", 50.0))
        for order in (0, 1)
    ]
    assert wanted(runs, ("default",)) == []
    assert {run.arm for run in wanted(runs)} == {"lossless"}
    other = [{**run, "setting": {}} for run in runs]
    assert len(wanted(other, ("default",))) == 20  # runs of another setting are not of this task


def test_the_report_replaces_its_own_part_only(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "smoke", TASK)
    (tmp_path / "accuracy.md").write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    shifts = {"plain": 0.0, "default": 0.1, "dither-0.5": -2.0}
    runs = [
        record(arm, seed, order, 60.0 + seed % 2 + order + shift + (seed % 3 == 0) * 0.01 * (arm != "plain"))
        for seed in range(1, 21)
        for arm, shift in shifts.items()
        for order in (0, 1)
    ]
    report.write(runs, tmp_path)
    page = (tmp_path / "accuracy.md").read_text()
    assert page.startswith("before\n") and page.endswith("after\n") and "old" not in page
    assert "- `smoke`: a network; 64 images, 2 epochs, batch 4." in page
    assert (tmp_path / "tables" / report.TABLE).read_text().splitlines()[1:] == [
        "smoke,plain,20,,,,61.00 ± 0.24,0.72,1.0,1.0,1.00",
        'smoke,default,20,+0.10,"[+0.10, +0.11]",equivalent,61.10 ± 0.24,0.72,8.0,8.0,1.00',
        'smoke,dither-0.5,5,-2.00,"[-2.01, -1.98]",different,59.00 ± 0.24,0.72,8.0,8.0,1.00',
    ]
    assert (
        "120 runs, 1.2 CPU hours; tf_comptrain 0.1.0 (commits abc), TensorFlow 2.21.0; x86_64 avx2." in page
    )
    assert (tmp_path / "images" / report.IMAGE).exists()


def test_nothing_is_published_without_an_interval(tmp_path, monkeypatch):
    monkeypatch.setitem(TASKS, "smoke", TASK)
    (tmp_path / "accuracy.md").write_text(f"{report.BEGIN}\n{report.END}\n")
    runs = [
        record(arm, seed, order, 60.0) for seed in (1, 2) for arm in ("plain", "default") for order in (0, 1)
    ]
    report.write(runs[:4], tmp_path)
    assert "No arm has two seeds yet" in (tmp_path / "accuracy.md").read_text()
    report.write([*runs, record("lossless", 1, 0, 60.0)], tmp_path)
    rows = (tmp_path / "tables" / report.TABLE).read_text()
    assert "smoke,default,2," in rows and "lossless" not in rows


def test_progress_says_how_the_arm_stands(monkeypatch):
    monkeypatch.setitem(TASKS, "smoke", TASK)
    runs = [
        record(arm, seed, order, 60.0 + seed / 10 * (arm == "default"))
        for seed in (1, 2)
        for arm in ("plain", "default")
        for order in (0, 1)
    ]
    line = equivalence.progress(
        runs, equivalence.Next("smoke", "default", 2, 1), ["smoke"], ["default"], MACHINE["kind"]
    )
    assert line.startswith("smoke default seed 2 order 1: 60.20, 30 s; undecided after 2: +0.15 [")
    assert line.endswith("points. 0 more runs of this seed, 12 to the next looks: 6 min")


def test_arms_have_names():
    assert tuple(arms.ARMS) == ARM_NAMES


@pytest.fixture
def images(tmp_path):
    random = np.random.default_rng(3)
    x, y = random.integers(0, 256, (96, 28, 28), "uint8"), random.integers(0, 10, 96)
    np.savez(tmp_path / "images.npz", x_train=x, y_train=y, x_test=x[:16], y_test=y[:16])
    return str(tmp_path / "images.npz")


@pytest.mark.long
def test_a_run_does_not_depend_on_those_before(images):
    trainer = training.Trainer(TASK, images)
    first = trainer.run("adaptive", 1, 0)
    others = [trainer.run("adaptive", 2, 1)]
    again = trainer.run("adaptive", 1, 0)
    assert first["loss"] == again["loss"] and first["test_loss"] == again["test_loss"]
    assert first["bound_over_sigma"] == again["bound_over_sigma"] != []
    assert first["conv_ratio"] == again["conv_ratio"] > 2
    assert all(run["loss"] != first["loss"] for run in others)
    assert again["test_loss"] == training.Trainer(TASK, images).run("adaptive", 1, 0)["test_loss"]


@pytest.mark.long
def test_undithered_streams_are_that_of_the_codec(images):
    trainer = training.Trainer(TASK, images)
    ratios = {
        arm: trainer.run(arm, 2, 0)["conv_ratio"] for arm in ("dither-0.25", "undithered-0.25", "dither-0.5")
    }
    assert 2 < ratios["dither-0.25"] < ratios["undithered-0.25"] < ratios["dither-0.5"]


def test_images_to_test_are_not_trained_on(images):
    training_set, x, y = data.load_apart(images, 70)
    assert len(training_set.x) == 70 and len(x) == len(y) == 16 + 16
    np.testing.assert_array_equal(x[16:], data.load(images, 96, 16).x[-16:])
    assert len(data.load_apart(images, 90)[1]) == 16 + 6


def test_passages_depend_on_seed_and_order_alone(tmp_path):
    (tmp_path / "text.txt").write_text("".join(chr(97 + k % 26) for k in range(500)))
    text = data.load_text(str(tmp_path / "text.txt"))
    first, again, other = (data.Passages(text, 8, 4, 3, 1, order) for order in (0, 0, 1))
    np.testing.assert_array_equal(first[2][0], again[2][0])
    assert (first[2][0] != other[2][0]).any()
    np.testing.assert_array_equal(first[0][0][:, 1:], first[0][1][:, :-1])
    x, y = text.validation(8)
    assert len(x) == 49 // 8 and x[0, 1] == y[0, 0]


def test_batches_depend_on_the_seed_alone():
    x = np.arange(64 * 8 * 8 * 3, dtype="uint8").reshape(64, 8, 8, 3)
    images = data.Images(x, np.arange(64), x, np.arange(64))
    first, again, other, order = (data.Batches(images, 16, *key) for key in ((1,), (1,), (2,), (1, 1)))
    np.testing.assert_array_equal(first[0][0], again[0][0])
    assert (first[0][1] != other[0][1]).any() and (first[0][1] != order[0][1]).any()
    labels = [first[i][1] for i in range(len(first))]
    assert sorted(np.concatenate(labels)) == list(range(64))
    first.on_epoch_end()
    assert (first[0][1] != labels[0]).any()
