"""A study from beginning to end: cells, resuming, the table and what is said of bad arguments."""

import json
import math
import shutil

import numpy as np
import pytest
import study_nets as nets

import tf_comptrain as ct
from tf_comptrain.study import lines
from tf_comptrain.study.grid import Candidate, Cell, grid_of
from tf_comptrain.study.results import interval
from tf_comptrain.study.running import time_left
from tf_comptrain.study.trainings import epochs_to

HOW = {
    "codecs": ["plane"],
    "bounds": (0.1, 0.4),
    "stages": ["start", "late"],
    "epochs": 2,
    "batch_size": 16,
    "progress": False,
}


# What a clock or an allocator says, which differs from run to run.
MEASURED = {
    "encode_gb_s", "decode_gb_s", "peak_bytes", "half_batch_peak_bytes", "largest_batch", "timeline",
    "step_s", "train_s",
}  # fmt: skip


def reproducible(study):
    return [{name: v for name, v in row.items() if name not in MEASURED} for row in study.table()]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return ct.impact_study(nets.build, nets.data, folder=tmp_path_factory.mktemp("study"), **HOW)


def test_every_cell_is_there(study):
    rows = study.table()
    trainings = [row for row in rows if row["row"] == "training"]
    assert len(trainings) == 1 + 2
    assert not [row["problem"] for row in rows if row["problem"]]
    for stage in ("start", "late"):
        of_stage = [row for row in rows if row["stage"] == stage and row["codec"] == "plane"]
        assert {row["tensor_class"] for row in of_stage} == {"norm", "convolution", "linear", "all"}
        assert len({row["tensor"] for row in of_stage}) == 4


def test_tensor_rows_agree_with_each_other_and_the_law(study):
    for stage in ("start", "late"):
        loose, tight = (
            {row["tensor"]: row for row in study.table() if (row["bound"], row["stage"]) == (bound, stage)}
            for bound in (0.4, 0.1)
        )
        for name, row in loose.items():
            assert row["violations"] == 0
            assert row["ratio"] > tight[name]["ratio"]
            assert row["gradient_error"] > tight[name]["gradient_error"] > 0
            assert row["gradient_cosine"] < tight[name]["gradient_cosine"] < 1
        parts = [row for name, row in tight.items() if name != "all"]
        assert tight["all"]["held_bytes"] == sum(row["held_bytes"] for row in parts)
        # Errors of tensors do not depend on each other: their squares add up.
        together = math.hypot(*(row["gradient_error"] for row in parts))
        assert tight["all"]["gradient_error"] == pytest.approx(together, rel=0.35)
        for row in parts:
            if row["tensor_class"] == "norm":  # of eight numbers
                continue
            assert row["measured_sigma"] == pytest.approx(row["predicted_sigma"], rel=0.35), row


def test_trainings_are_paired_with_plain_ones(study):
    plain = next(row for row in study.table() if row["codec"] == "plain")
    assert plain["metric_change"] == 0 and plain["seed"] == 0
    for row in study.summary():
        assert row["seeds"] == 1 and row["low"] is None
        assert row["metric_change"] == pytest.approx(row["metric"] - plain["metric"])
        assert row["saved_ratio"] > 1 and row["step_ratio"] > 0
    assert study.metric("network") == "val_accuracy" and study.is_higher_better("network")


@pytest.mark.long
def test_a_study_that_was_cut_off_ends_as_one_that_was_not(study, tmp_path):
    """Killed as it wrote: the last line is half a line."""
    whole = (study.folder / "cells.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "study.json").write_bytes((study.folder / "study.json").read_bytes())
    kept = len(whole) // 2
    (tmp_path / "cells.jsonl").write_bytes(b"".join(whole[:kept]) + whole[kept][:40])
    again = ct.impact_study(nets.build, nets.data, folder=tmp_path, **HOW)
    assert (tmp_path / "cells.jsonl").read_bytes().startswith(b"".join(whole[:kept]))
    assert reproducible(again) == reproducible(study)


def test_what_is_there_is_not_measured_again_and_more_may_be_asked(study, tmp_path):
    for name in ("study.json", "cells.jsonl"):
        (tmp_path / name).write_bytes((study.folder / name).read_bytes())
    more = ct.impact_study(
        nets.build, nets.data, folder=tmp_path, **HOW | {"codecs": ["plane", "zvc"], "stages": []}
    )
    before, after = (lines.read(folder / "cells.jsonl") for folder in (study.folder, tmp_path))
    assert after[: len(before)] == before
    assert [record["cell"][2] for record in after[len(before) :]] == [["zvc", "lossless", 0.0]]
    assert {row["codec"] for row in more.summary()} == {"plane", "zvc"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"epochs": 3}, "another `epochs`: 2 there, 3 here"), ({"batch_size": 8}, "another `batch_size`")],
)
def test_another_studys_folder_is_refused(study, change, problem):
    with pytest.raises(ValueError, match=problem):
        ct.impact_study(nets.build, nets.data, folder=study.folder, **HOW | change)


def test_other_data_and_another_network_are_another_study(study):
    (x, y), validation = nets.data()
    with pytest.raises(ValueError, match="another `data`"):
        ct.impact_study(nets.build, ((x + 1, y), validation), folder=study.folder, **HOW)
    with pytest.raises(ValueError, match="another `networks`"):
        ct.impact_study(lambda: nets.build(4), nets.data, folder=study.folder, **HOW)

    def faster():
        model = nets.build()
        model.optimizer.learning_rate = 0.7
        return model

    with pytest.raises(ValueError, match="another `networks`"):
        ct.impact_study(faster, nets.data, folder=study.folder, **HOW)


def test_a_network_that_is_compressed_already_is_refused(tmp_path):
    def build():
        model = nets.build()
        ct.compress_model(model)
        return model

    with pytest.raises(ValueError, match="`build` must return the plain model"):
        ct.impact_study(build, nets.data, folder=tmp_path, **HOW)


@pytest.mark.long
def test_a_codec_that_fails_is_a_row_and_not_the_end(tmp_path, monkeypatch):
    from tf_comptrain.study import grid

    def fails(bits):
        raise OverflowError("too large")

    monkeypatch.setitem(grid.CONTESTANTS, "cosine", grid.Contestant(fails))
    study = ct.impact_study(
        nets.build, nets.data, ["cosine", "zvc"], bounds=(0.1,), stages=["start"], folder=tmp_path, epochs=1,
        progress=False,
    )  # fmt: skip
    found = {row["codec"]: row.get("problem") for row in study.summary()}
    assert found == {"cosine": "OverflowError: too large", "zvc": None}


def test_tables_are_written(study, tmp_path):
    from pyarrow import csv, parquet

    files = study.write(tmp_path)
    table = parquet.read_table(files[0])
    assert table.to_pylist() == study.table()
    assert csv.read_csv(files[1]).column_names == table.column_names


@pytest.mark.long
def test_a_step_is_drawn_over_its_time(tmp_path):
    """Of a network whose tensors the profiler records."""
    study = ct.impact_study(
        lambda: nets.build(64), lambda: nets.data(256), ["plane"], bounds=[0.2], stages=[], folder=tmp_path, epochs=1,
        batch_size=128, progress=False,
    )  # fmt: skip
    plain = next(row for row in study.table() if row["codec"] == "plain")
    timelines = study.plain_timeline("network"), study.summary()[0]["timeline"]
    assert [len(timeline) for timeline in timelines] == [100, 100]
    assert max(timelines[0]) == pytest.approx(plain["peak_bytes"], rel=0.5)
    assert max(timelines[1]) < max(timelines[0])
    assert plain["largest_batch"] == 128 < study.summary()[0]["largest_batch"]


@pytest.mark.long
def test_networks_have_names_and_data_of_their_own(tmp_path):
    builds = {"narrow": lambda: nets.build(4), "wide": nets.build}
    study = ct.impact_study(
        builds,
        dict.fromkeys(builds, nets.data),
        ["zvc"],
        stages=[],
        folder=tmp_path,
        epochs=1,
        progress=False,
    )
    assert study.networks == ["narrow", "wide"]
    assert [row["network"] for row in study.summary()] == ["narrow", "wide"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"codecs": ["lzma"]}, "`codecs` must be among 'plane', .*Received: 'lzma'"),
        ({"codecs": "plane"}, "`codecs` must be a list of names"),
        ({"modes": ["psnr"]}, "`modes` must be among"),
        ({"modes": ["fixed_rate"]}, "`codecs` have none of the `modes`"),
        ({"bounds": {"abs": (0.1,)}}, "`bounds` must have those of each mode. Received: none for 'sigma'"),
        ({"bounds": (0.0,)}, "must be a number above 0"),
        ({"stages": ["middle"]}, "`stages` must be among"),
        ({"seeds": ()}, "`seeds` must have one"),
        ({"epochs": 0}, "`epochs` must be an integer of at least 1"),
        ({"data": np.zeros(3)}, "`data` must be, or return"),
        ({"build": lambda: None}, "`build` must return a compiled keras.Model"),
        ({"build": {"a/b": nets.build}}, "letters, digits"),
        ({"metric": "val_auc"}, "`metric` must be among what `fit` logs: 'accuracy'"),
    ],
)
def test_bad_arguments_are_named(change, problem, tmp_path):
    arguments = {"build": nets.build, "data": nets.data, "folder": tmp_path, **HOW, **change}
    with pytest.raises(ValueError, match=problem):
        ct.impact_study(**arguments)


def test_xla_is_refused(tmp_path):
    def build():
        model = nets.build()
        model.compile("sgd", "mse", jit_compile=True)
        return model

    with pytest.raises(ValueError, match="jit_compile=False: a study runs .* codec 'fixed' is what XLA has"):
        ct.impact_study(build, nets.data, folder=tmp_path, **HOW)


def test_a_folder_without_a_study_is_refused(tmp_path):
    with pytest.raises(ValueError, match="impact_study has written"):
        ct.Study(tmp_path)
    (tmp_path / "cells.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"no study\.json"):
        ct.impact_study(nets.build, nets.data, folder=tmp_path, **HOW)


def test_time_left_is_that_of_cells_alike():
    cell = Cell("training", "a", Candidate("plane", "sigma", 0.1), "", 0)
    other = cell._replace(network="b")
    seconds = {cell: 100.0, cell._replace(seed=1): 120.0, cell._replace(seed=2): 5000.0}
    assert time_left([cell._replace(seed=3)] * 31, seconds) == "1:02:00 left"
    assert time_left([cell, other], seconds) == ""


def test_intervals_and_targets():
    assert interval([1.0]) == (None, None)
    low, high = interval([0.0, 1.0, 2.0])
    assert (low + high) / 2 == pytest.approx(1) and high - 1 == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert epochs_to([0.1, 0.5, 0.4], 0.5, True) == 2
    assert epochs_to([0.9, 0.6], 0.7, False) == 2
    assert epochs_to([0.1], 0.5, True) is None


def test_without_trainings_one_is_left_for_its_stages():
    grid = grid_of(["plane"], ["sigma"], [0.1, 0.2], ["early", "late"], [3, 4])._replace(trainings=False)
    cells = list(grid.cells(["a"]))
    assert [(cell.kind, cell.setting.codec, cell.seed) for cell in cells[:1]] == [("training", "plain", 3)]
    assert [(cell.kind, cell.stage) for cell in cells[1:]] == [("tensor", "early")] * 2 + [
        ("tensor", "late")
    ] * 2


def test_lossless_codecs_have_one_cell_and_rates_those_of_the_codec():
    grid = grid_of(
        ["plane", "zvc", "group"], ["sigma", "fixed_rate"], {"sigma": [0.1], "fixed_rate": [3, 4]}, [], [0]
    )
    assert list(map(str, grid.settings())) == ["plane 0.1 sigma", "zvc", "group 4 bits"]
    assert json.loads(json.dumps(grid._asdict()))["codecs"] == ["plane", "zvc", "group"]


OF_TENSORS = {**HOW, "bounds": (0.1,), "trainings": False, "stages": ["late"]}


@pytest.fixture(scope="module")
def study_of_tensors(tmp_path_factory):
    """Its folder, with the weights of one stage."""
    folder = tmp_path_factory.mktemp("tensors")
    ct.impact_study(nets.build, nets.data, folder=folder, **OF_TENSORS)
    return folder


@pytest.mark.long(but=["<lambda>0"])
@pytest.mark.parametrize(
    "damage", [lambda file: file[: len(file) // 2], lambda file: b"", lambda file: b"\0" + file[1:]]
)
def test_weights_that_were_damaged_are_trained_again(study_of_tensors, damage, tmp_path):
    shutil.copytree(study_of_tensors, tmp_path, dirs_exist_ok=True)
    (stage,) = (tmp_path / "stages").iterdir()
    stage.write_bytes(damage(stage.read_bytes()))
    bounds = (0.1, 0.2)
    again = ct.impact_study(nets.build, nets.data, folder=tmp_path, **{**OF_TENSORS, "bounds": bounds})
    rows = [row for row in again.table() if row["tensor"] == "all"]
    assert sorted(row["bound"] for row in rows) == [0.1, 0.2]
    assert not [row["problem"] for row in again.table() if row["problem"]]


@pytest.mark.parametrize("content", ["[]", "{}", '{"identity": 3}', "[" * 100_000])
def test_a_study_json_of_something_else_is_one_error(content, tmp_path):
    (tmp_path / "study.json").write_text(content)
    for call in (
        lambda: ct.Study(tmp_path),
        lambda: ct.impact_study(nets.build, nets.data, folder=tmp_path, **HOW),
    ):
        with pytest.raises(
            ValueError, match="`folder` must be one that tf_comptrain.impact_study has written"
        ):
            call()


def test_names_that_a_spreadsheet_would_compute_are_quoted(study, tmp_path, monkeypatch):
    rows = [{**row, "network": "=1+1"} for row in study.table()]
    monkeypatch.setattr(type(study), "table", lambda self: rows)
    _, table = study.write(tmp_path)
    lines_of_table = table.read_text().splitlines()[1:]
    assert all('"\'=1+1"' in line for line in lines_of_table) and '"=1' not in table.read_text()
