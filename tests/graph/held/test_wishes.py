"""Who says what of a tensor, and who is heard."""

import tensorflow as tf

from tf_comptrain import codecs
from tf_comptrain.graph import Wishes
from tf_comptrain.graph.held.sites import Sites
from tf_comptrain.graph.held.states import CAPACITY
from tf_comptrain.storage import Holding, Offload, Policy, Setting, holding_of, holdings_of

PLANE = codecs.get("plane")


def operations(*names):
    graph = tf.Graph()
    with graph.as_default():
        return graph, [tf.constant(0.0, name=name).op for name in names]


def test_names_come_before_layers_and_these_before_the_whole_step():
    named = holdings_of({"a": "compress", "a/b": "keep"})
    wishes = Wishes(PLANE, named=named, offload=holding_of(Offload()))
    graph, (inner, outer, other, free) = operations("a/b/x", "a/x", "ab/x", "c")
    assert [wishes.of(op).way for op in (inner, outer, other)] == ["keep", "compress", "offload"]
    wishes.say(graph, [inner, other], Holding("rebuild"))
    assert [wishes.of(op).way for op in (inner, other, free)] == ["keep", "rebuild", "offload"]
    wishes.say(graph, [other], Holding("keep"))  # of the layer around
    assert wishes.of(other).way == "rebuild"
    assert Wishes(PLANE).of(free) is None


def test_a_plan_that_is_made_again_takes_the_place_of_the_first():
    _, (op,) = operations("a")
    wishes = Wishes(PLANE, named=holdings_of({"a": "keep"}))
    wishes.named = holdings_of({"a": "rebuild"})
    assert wishes.of(op) == Holding("rebuild")


def test_fused_operations_are_kept():
    assert holding_of("fused") == Holding("keep")


def test_a_policy_comes_before_codec_and_bound():
    policy = Policy({"linear": Setting("rans", "abs", 0.5)})
    stream = Wishes(PLANE, policy=policy).stream("x", "linear", PLANE)
    assert (stream.way, stream.codec.name, stream.kind) == ("compress", "rans", "linear")
    assert not stream.bound.relative and stream.bound.value == 0.5
    assert Wishes(PLANE).stream("x", "norm", PLANE) == Holding("compress", PLANE, None, "norm")


def test_one_lossy_way_makes_a_step_lossy():
    zvc = codecs.get("zvc")
    graph, (op,) = operations("a")
    assert Wishes(zvc, offload=holding_of(Offload(codec=None))).is_lossless()
    assert not Wishes(zvc, policy=Policy({"norm": Setting("plane")})).is_lossless()
    wishes = Wishes(zvc)
    wishes.say(graph, [op], holding_of(Offload(codec="plane")))
    assert not wishes.is_lossless()


def test_a_decision_claims_the_rows_that_its_streams_will_have():
    sites, (_, (op,)) = Sites(), operations("first")
    sites.claim("first")
    sites.of(op.outputs[0], Holding("compress", PLANE, kind="linear"))
    for number in range(CAPACITY - 2):
        sites.claim(f"claimed/{number}")
    assert sites.has_room_for("last") and sites.table.used == 1
    sites.claim("last")
    assert sites.has_room_for("last") and not sites.has_room_for("more")


def test_a_layer_speaks_for_what_its_gradient_makes():
    """As the cosine of the gradient of a sine, which is held in place of its argument."""
    keep, graph = Holding("keep"), tf.Graph()
    with graph.as_default():
        x = tf.ones([])
        with tf.name_scope("net/waves"):
            sine = tf.sin(x).op
        with tf.name_scope("gradient_tape/net/waves"):
            cosine = tf.cos(x).op
        with tf.name_scope("gradient_tape/net/other"):
            other = tf.cos(x).op
    named, said = Wishes(PLANE, named={"net/waves": keep}), Wishes(PLANE)
    said.say(graph, [sine], keep)
    for wishes in (named, said):
        assert [wishes.of(op) for op in (sine, cosine, other)] == [keep, keep, None]
