"""The tables of the pages of the sciences are what the rows of their runs say."""

import csv
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "sciences"))

import science_tables as tables  # noqa: E402


@pytest.mark.parametrize("name", tables.TABLES_OF)
def test_a_table_is_made_of_the_rows(name):
    with (ROOT / "docs" / "tables" / f"{name}.csv").open(newline="") as file:
        assert list(csv.reader(file)) == tables.TABLES_OF[name]()


@pytest.mark.parametrize(
    "name, settings, seeds", [("nowcast", [{}], 5), ("recoils", [{"points": 256}, {"points": 128}], 10)]
)
def test_each_seed_is_there_in_each_arm(name, settings, seeds):
    for arm, setting in [("plain", each) for each in settings] + [("compressed", settings[0])]:
        assert sorted(tables.by_seed(name, arm, **setting)) == list(range(1, seeds + 1))


def test_a_change_is_one_of_pairs():
    """Against R: t.test(c(1, 2, 4)) gives 2.33 [-1.46, 6.13]."""
    ours = {seed: {"score": seed + difference} for seed, difference in ((1, 1), (2, 2), (3, 4))}
    other = {seed: {"score": seed} for seed in (3, 1, 2)}
    assert tables.change("score", ours, other, "{:.2f}") == "+2.33 [-1.46, +6.13]"


def test_rows_name_no_folders_of_a_machine():
    for file in tables.RESULTS.iterdir():
        assert "/" not in file.read_text().replace("mm/h", "")
