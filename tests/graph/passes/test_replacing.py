"""What stands in for gradient operations, and the report of it."""

import tensorflow as tf
from test_needs import pooled
from toy import dense, toy

from tf_comptrain.graph.passes.executor import EXECUTOR
from tf_comptrain.graph.passes.replacing import replace
from tf_comptrain.graph.passes.report import crossings_of, uses_of
from tf_comptrain.graph.passes.tiles import TiledParts
from tf_comptrain.storage import KEEP, holdings_of


def run(step):
    held = step.held()
    step.restored(held, EXECUTOR)
    replaced = replace(step.step, step.needs, step.decision, held, {})
    return (
        held,
        replaced,
        crossings_of(step.step, step.needs, step.decision, held, replaced, TiledParts((), frozenset())),
    )


def test_a_relu_finds_its_mask_in_the_stream_of_its_output():
    with toy(dense) as step:
        held, replaced, rows = run(step)
        relu = step.op("ReluGrad")
        mask = replaced.gradients[relu.outputs[0].name]
        assert mask.op.type == "Comptrain>StreamMaskGrad" and not relu.outputs[0].consumers()
        assert "Comptrain>Bitmask" not in step.types()
        assert [row.storage for row in rows if row.name == "h"] == ["compress"]
        (use,) = [use for use in uses_of(step.decision, held, replaced) if use.kernels]
        assert use.alone and use.stream is held.of(step.tensors["h"])


def test_where_there_is_none_it_reads_bits():
    def behind(x, first, second):
        a = tf.matmul(x, first)
        return tf.reduce_sum(tf.square(tf.matmul(tf.nn.elu(tf.nn.relu(a)), second))), {"a": a}

    with toy(dense, named=holdings_of({"h": KEEP})) as step:
        _, replaced, rows = run(step)
        assert "Comptrain>BitmaskGrad" not in step.types()  # the tensor is there
        assert [row.storage for row in rows if row.name == "h"] == [KEEP]

    def leaky(x, first, second):
        a = tf.matmul(x, first)
        return tf.reduce_sum(tf.square(tf.matmul(tf.nn.leaky_relu(a), second))), {"a": a}

    with toy(leaky) as step:
        _, replaced, rows = run(step)
        (new,) = replaced.gradients.values()
        assert new.op.type == "Comptrain>BitmaskGrad"
        assert ("MatMul", "bitmask", ("LeakyReluGrad",)) in [(r.name, r.storage, r.readers) for r in rows]


def test_a_pooling_holds_positions():
    with toy(pooled) as step:
        _, replaced, rows = run(step)
        (found,) = replaced.poolings
        assert found.pooling.type == "MaxPool" and found.positions.op.type == "Comptrain>MaxPool"
        assert [row.bits for row in rows if row.storage == "bitmask"] == [2]


def test_rows_stand_in_the_order_of_the_forward_pass():
    with toy(dense) as step:
        _, _, rows = run(step)
        places = [step.step.places[row.name] for row in rows]
        assert places == sorted(places) and len(places) >= 2
        assert not any(row.storage == "rebuild" for row in rows)
