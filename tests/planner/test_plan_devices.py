"""Plans over devices: JSON, table, difference, picture, and one clear error for each mistake."""

import pytest
from synthetic import DEVICE
from synthetic_layers import decoder, layered

from tf_comptrain.planner import (
    Layer,
    LayerChain,
    Link,
    OffloadOption,
    RebuildOption,
    Saved,
    device_plan_from_json,
    hardware_from_json,
    plan_devices,
)

MACHINE = DEVICE._replace(devices=4)


@pytest.fixture(scope="module")
def plan():
    return plan_devices(decoder(4, 2048, 16), MACHINE, "1.5GB", budget_s=60)


def test_json_both_ways(plan, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    assert device_plan_from_json(path) == device_plan_from_json(plan.to_json()) == plan


def test_stages(plan):
    chain = decoder(4, 2048, 16)
    assert plan.feasible and plan.peak_bytes <= 1.5e9
    assert [name for stage in plan.stages for name in stage.layers] == [layer.name for layer in chain.layers]
    assert [d for stage in plan.stages for d in stage.devices] == list(
        range(sum(len(s.devices) for s in plan.stages))
    )
    assert chain.batch % plan.microbatches == 0
    assert 0 <= plan.gap <= 0.01
    assert set(plan.storage) <= {saved.name for layer in chain.layers for saved in layer.saved}


def test_seconds_of_a_stage_add_up_to_the_step(plan):
    for row in plan.rows:
        parts = (row.compute_s, row.memory_s, row.exchange_s, row.sync_s, row.waiting_s)
        assert sum(parts) == pytest.approx(plan.step_s)


def test_progress():
    seen = []
    plan = plan_devices(decoder(2, 1024, 8), MACHINE, budget_s=2, progress=seen.append)
    assert seen and seen[-1].step_s >= plan.step_s and seen[-1].bound_s <= plan.step_s


def test_table_and_difference(plan):
    text = str(plan)
    for number, stage in enumerate(plan.stages):
        assert any(line.startswith(f"{number} ") and stage.layers[0] in line for line in text.splitlines())
    assert "bound" in text and "1.5 GB allowed" in text
    other = plan_devices(decoder(4, 2048, 16), MACHINE, "80GB", budget_s=60)
    assert "+peak" in plan.difference(other)
    assert plan.difference(plan) == ""


def test_nothing_moves_that_need_not():
    """A copy that a layer hides takes no time: it is made where the memory asks for it, and only there."""
    layers = tuple(
        Layer(f"layer{k}", 1e-2, 1e-2, output_bytes=1000, splits=("batch",),
              saved=(Saved(f"x{k}", 10**9, (OffloadOption(1e-3, 1e-3),)),))
        for k in range(8)
    )  # fmt: skip
    chain = LayerChain("hidden copies", layers, batch=4)
    machine = MACHINE._replace(devices=1)
    roomy, tight = (plan_devices(chain, machine, limit, budget_s=2) for limit in ("10GB", "3.5GB"))
    assert roomy.storage == {}
    assert set(tight.storage.values()) == {"offload"} and len(tight.storage) < 8
    assert tight.step_s == roomy.step_s


def test_picture(plan, tmp_path):
    plan.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").stat().st_size > 10000
    with pytest.raises(ValueError, match="fewer stages"):
        plan._replace(events=()).plot(tmp_path / "none.png")


def test_no_strategy_fits():
    plan = plan_devices(decoder(2, 1024, 8), MACHINE, "1MB", budget_s=2)
    assert not plan.feasible and plan.bound_s is None and plan.peak_bytes > 1e6
    assert "no strategy fits into the memory: proved" in str(plan)
    assert plan_devices(decoder(2, 1024, 8), MACHINE, plan.peak_bytes + 1, budget_s=2).feasible


def test_more_memory_is_never_slower():
    chain = layered("transformer", 25)
    plans = [plan_devices(chain, MACHINE, memory, budget_s=60) for memory in ("150MB", "250MB", "4GB")]
    assert plans[0].step_s * 1.01 >= plans[1].step_s and plans[1].step_s * 1.01 >= plans[2].step_s


def test_slow_links_make_stages_and_fast_ones_data_parallelism():
    chain = decoder(4, 2048, 16)
    fast = plan_devices(chain, MACHINE, "40GB")
    slow = plan_devices(chain, MACHINE._replace(device_link=Link(1e-5, 2e10)), "40GB")
    assert [(len(s.devices), s.split) for s in fast.stages] == [(4, "batch")]
    assert len(slow.stages) > 1


def test_a_stage_lies_in_a_node():
    machine = MACHINE._replace(devices=16, node_devices=4, node_link=Link(1e-5, 5e9))
    plan = plan_devices(decoder(8, 1024, 16), machine, budget_s=60)
    for stage in plan.stages:
        nodes = {device // 4 for device in stage.devices}
        assert len(nodes) == max(1, len(stage.devices) // 4)


CHAIN = LayerChain("two", (Layer("a", 1.0, 2.0), Layer("b", 1.0, 2.0)), 4)
SAVED = Saved("x", 10, (RebuildOption(("y",), 0.1),))
MISTAKES = [
    ({"devices": 5}, "`devices` must be at most the 4 of"),
    ({"devices": 0}, "`devices` must be an integer of at least 1"),
    ({"memory": "lots"}, "`memory` must be bytes"),
    ({"budget_s": 0}, "`budget_s` must be a number above 0"),
    ({"chain": CHAIN._replace(layers=())}, "`layers` must have at least one layer"),
    ({"chain": CHAIN._replace(layers=CHAIN.layers * 2)}, "'a' twice"),
    ({"chain": CHAIN._replace(layers=(Layer("a", -1.0, 2.0),))}, "`forward_s of layer 'a'` must be"),
    ({"chain": CHAIN._replace(layers=(Layer("a", 1.0, 2.0, splits=("time",)),))}, "`splits of layer 'a'`"),
    ({"chain": CHAIN._replace(layers=(Layer("a", 1.0, 2.0, saved=(SAVED,)),))}, "of the same layer"),
    ({"hardware": MACHINE._replace(node_devices=2)}, "`node_devices` and `node_link` go together"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_mistakes(change, message):
    with pytest.raises(ValueError, match=message):
        plan_devices(**{"chain": CHAIN, "hardware": MACHINE, **change})


def test_a_plan_with_a_mistake(plan):
    import json

    fields = json.loads(plan.to_json())
    with pytest.raises(ValueError, match="must be one of batch, channels, rows"):
        device_plan_from_json({**fields, "stages": [[["a"], [0], "time"]]})
    with pytest.raises(ValueError, match=r"`stages\[0\]` must be"):
        device_plan_from_json({**fields, "stages": [[["a"]]]})
    with pytest.raises(ValueError, match="`rows` must have one for each"):
        device_plan_from_json({**fields, "rows": []})


def test_examples_are_machines():
    from pathlib import Path

    folder = Path(__file__).resolve().parents[2] / "examples" / "hardware"
    counts = {path.stem: hardware_from_json(path).devices for path in folder.glob("*.json")}
    assert counts == {"h200x4": 4, "h200x8x8": 64, "h200x1024": 1024}
