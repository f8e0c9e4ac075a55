"""The one decision of a step, by who wrote it; nothing of the graph changes meanwhile."""

import tensorflow as tf
from toy import dense, smooth, toy

from tf_comptrain.graph.crossings import NEEDED_AT_ONCE
from tf_comptrain.storage import (
    DEFAULT_BOUNDS,
    KEEP,
    Holding,
    Offload,
    Policy,
    Setting,
    holding_of,
    holdings_of,
)


def test_the_default_rule_holds_what_the_rest_is_made_of():
    with toy(smooth) as step:
        stream = step.holding("a")
        assert (stream.way, stream.codec.name, stream.kind) == ("compress", "plane+dither", "nonlinear")
        assert step.holding("h") == Holding("rebuild")
        assert step.decision.chosen.errors.kind(step.tensors["a"]) == stream.kind in DEFAULT_BOUNDS


def test_nothing_of_the_graph_changes_before_the_decision_is_made():
    with toy(dense) as step:
        assert step.step.backward.stop == len(step.types())


def test_a_name_keeps_a_tensor():
    with toy(dense, named=holdings_of({"h": KEEP})) as step:
        assert step.holding("h") == Holding(KEEP, note="storage='keep'")


def test_a_policy_says_codec_and_bound():
    policy = Policy({"linear": Setting("rans", "sigma", 0.3)}, {"Sin": Setting("zvc")})
    with toy(dense, policy=policy) as step:
        holding = step.holding("h")
        # The mask of a ReLU is read off restored values: no dither.
        assert (holding.codec.name, holding.bound.value, holding.mask) == ("rans", 0.3, True)


def test_what_is_small_is_not_offloaded():
    lossless = holding_of(Offload(codec="zvc"))
    with toy(dense, offload=lossless) as step:
        assert step.holding("h") == Holding(KEEP, note="not offloaded: small")
    with toy(dense, offload=holding_of(Offload(codec="plane"))) as step:
        assert step.holding("h").way == "compress" and step.holding("h").offload is None


def test_streams_have_dither_on_the_executor_alone():
    with toy(dense) as step:
        assert step.holding("h").codec.name == "plane+dither"
    with toy(dense, xla=True) as step:
        assert step.holding("h").codec.name == "plane"


def test_what_a_loss_is_made_of_is_kept():
    def ends(x, first, second):
        h = tf.tanh(tf.matmul(tf.nn.relu(tf.matmul(x, first)), second))
        return tf.reduce_sum(h), {"h": h}

    with toy(ends) as step:
        assert step.holding("h") == Holding(KEEP, note=NEEDED_AT_ONCE)


def test_signs_are_bits_where_no_stream_has_them():
    def leaky(x, first, second):
        a = tf.matmul(x, first)
        return tf.reduce_sum(tf.square(tf.matmul(tf.nn.leaky_relu(a), second))), {"a": a}

    with toy(leaky) as step:
        (sign,) = step.decision.signs
        assert sign.tensor is step.tensors["a"] and sign.holding.way == "bitmask"
    with toy(leaky, named=holdings_of({"MatMul": KEEP})) as step:
        (sign,) = step.decision.signs
        assert sign.holding.way == KEEP
