"""Policies: what is valid, what is not, and that a traced step follows one."""

import json

import pytest
from models import compiled, images, site_of, small_cnn

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation

POLICY = ct.Policy(
    {"convolution": ct.Setting("rans", "sigma", 0.4), "norm": ct.Setting("plane", "range", 0.05)},
    {"small_cnn_1/dense1_1/Relu": ct.Setting("zvc")},
)


def test_json_brings_back_what_was_written(tmp_path):
    file = tmp_path / "policy.json"
    file.write_text(POLICY.to_json())
    assert ct.Policy.from_json(file) == POLICY
    assert ct.Policy.from_json(json.loads(POLICY.to_json())) == POLICY


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"classes": {"pooling": {}}}, "'pooling'"),
        ({"classes": {"norm": {"codec": "zfp"}}}, "'norm': `codec` must be one of"),
        ({"classes": {"norm": {"mode": "percent"}}}, "'norm': `mode` must be one of 'abs', 'sigma', 'range'"),
        ({"tensors": {"conv/Relu": {"bound": -1}}}, "'conv/Relu': `bound` must be a number between"),
        (
            {"classes": {"norm": {"mode": "abs"}}},
            "'norm': `mode` says what a `bound` is. Received: mode 'abs'",
        ),
        ({"tensors": {"conv/Relu": {"bits": 4}}}, '"codec", "mode" and "bound"'),
        ({"layers": {}}, '"classes" and "tensors"'),
        ({"classes": []}, "`classes` of a policy must be an object"),
    ],
)
def test_says_what_is_wrong(source, problem):
    with pytest.raises(ValueError, match=problem):
        ct.Policy.from_json(source)


def test_a_file_that_is_no_json_is_named(tmp_path):
    file = tmp_path / "policy.json"
    file.write_text("{")
    with pytest.raises(ValueError, match="policy.json"):
        ct.compress_model(small_cnn(), policy=file)


def test_excludes_what_it_says_itself():
    for how in ({"codec": "rans"}, {"error_bound": 0.1}):
        with pytest.raises(ValueError, match="leave `codec` and `error_bound` out"):
            ct.compress_model(small_cnn(), policy=POLICY, **how)
    with pytest.raises(TypeError, match="`policy` must be"):
        ct.compress_model(small_cnn(), policy={"classes": {}})


def test_a_step_holds_each_tensor_as_the_policy_says():
    x, y = images()
    model = compiled(small_cnn())
    policy = ct.Policy(POLICY.classes)
    ct.compress_model(model, policy=policy)
    model.fit(x, y, verbose=0)
    sites = instrumentation(model).sites()
    by_kind = {site.kind: site for site in sites.values()}
    assert set(by_kind) == {"convolution", "norm", "linear"}
    for site in sites.values():
        setting = policy.setting(site.name, site.kind)
        assert site.codec.format == setting.codec and site.read_state().stream_bytes > 0
    assert str(by_kind["convolution"].bound) == "0.4 sigma"
    assert str(by_kind["norm"].bound) == "0.05 range"
    assert str(by_kind["linear"].bound) == "0.1 sigma"  # not in the policy: the default
    bounds = {row.bound for row in ct.report(model).rows if row.storage == "compress"}
    assert bounds == {"0.4 sigma", "0.05 range", "0.1 sigma"}


def test_a_tensors_own_setting_comes_before_its_class():
    x, y = images()
    plain = compiled(small_cnn())
    ct.compress_model(plain)
    plain.fit(x, y, verbose=0)
    name = site_of(instrumentation(plain), "relu1_1/Relu").name
    model = compiled(small_cnn())
    ct.compress_model(model, policy=ct.Policy(POLICY.classes, {name: ct.Setting("zvc")}))
    model.fit(x, y, verbose=0)
    assert site_of(instrumentation(model), "relu1_1/Relu").codec.format == "zvc"
