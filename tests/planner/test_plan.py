"""Plans as JSON, table, difference and picture."""

import pytest
from planner.graphs import chain

from tf_comptrain.planner import plan_from_json, plan_graph


@pytest.fixture(scope="module")
def plan():
    return plan_graph(chain(), 450, budget_s=1)


def test_json_both_ways(plan, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    assert plan_from_json(path) == plan_from_json(plan.to_json()) == plan


def test_table(plan):
    text = str(plan)
    for row in plan.rows:
        line = next(line for line in text.splitlines() if line.startswith(f"{row.tensor} "))
        assert row.choice in line
    assert "450 B allowed" in text


def test_no_plan_fits():
    text = str(plan_graph(chain(), 100, budget_s=1))
    assert "no plan fits into the limit: proved" in text


def test_difference(plan):
    other = plan_graph(chain(), 550, budget_s=1)
    changed = [name for name, choice in plan.choices.items() if choice != other.choices[name]]
    assert changed
    assert all(f"-{name} " in plan.difference(other) for name in changed)
    assert plan.difference(plan) == ""


def test_plot(plan, tmp_path):
    plan.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes()[:4] == b"\x89PNG"


def test_curve_and_events(plan):
    assert max(size for _, size in plan.curve) == pytest.approx(plan.peak_bytes, abs=1)
    assert max(event.end_s for event in plan.events) == pytest.approx(plan.step_s)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"step_s": ', '"steps": ', "must have step_s"),
        ('"batch": 8', '"batch": 0', "`batch` must be an integer"),
        ('["x1", ', '["x1", "x1", ', r"`rows\[1\]` must be"),
    ],
)
def test_mistakes(plan, old, new, message):
    text = plan.to_json()
    assert old in text
    with pytest.raises(ValueError, match=message):
        plan_from_json(text.replace(old, new, 1))
