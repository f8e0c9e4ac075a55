"""What comes back, and when."""

import tensorflow as tf
from toy import dense, reads, smooth, toy

from tf_comptrain.graph.passes.executor import EXECUTOR
from tf_comptrain.graph.passes.xla import XLA
from tf_comptrain.graph.tensors import base_of


def test_a_reader_reads_what_is_restored_at_its_gradient():
    with toy(dense) as step:
        step.restored(step.held(), EXECUTOR)
        restored = step.op("Comptrain>Decompress")
        (product,) = [op for op in restored.outputs[0].consumers() if op.type == "MatMul"]
        gate = restored.inputs[2]
        assert reads(product, gate) and step.step.gradients.is_gradient(gate)


def test_what_is_rebuilt_is_made_of_what_is_restored():
    with toy(smooth) as step:
        restored = step.restored(step.held(), EXECUTOR)
        again = [op for op in step.ops("Sigmoid") if op.name.startswith("rebuilt/")]
        assert again and all(base_of(op.inputs[0]).op.type == "Comptrain>Decompress" for op in again)
        assert all(step.step.gradients.is_gradient(gate) for gate, _ in restored.readers)


def test_readers_of_one_gradient_share_what_is_restored():
    def several(x, first, second):
        a = tf.matmul(tf.sin(x), first)
        h = tf.nn.softplus(a) * tf.nn.softsign(a)
        return tf.reduce_sum(tf.square(tf.matmul(h, second))), {"a": a}

    with toy(several) as step:
        step.restored(step.held(), EXECUTOR)
        assert step.types().count("Comptrain>Decompress") <= 2


def test_small_operands_wait_by_the_engines_means():
    with toy(dense, xla=True) as step:
        gate, floats, counts = step.op("ReluGrad").outputs[0], step.tensors["h"], tf.constant([1])
        late = EXECUTOR.late(floats, gate)
        assert late.op.control_inputs == [gate.op] and reads(late.op, floats)
        assert list(XLA.late(floats, gate).op.inputs) == [floats, gate]
        assert XLA.late(counts, gate).op.control_inputs == [gate.op]  # of integers XLA has no fence


def test_products_run_again_once_for_all_that_share_them():
    """Scores are wanted for the gradient of the values, and again for their own."""

    def attention(x, first, second):
        def heads(y):
            return tf.reshape(y, [16, -1, 4])

        queries, values = heads(tf.matmul(tf.sin(x), first)), heads(tf.matmul(tf.sin(x), second))
        scores = tf.matmul(queries, queries, transpose_b=True)  # 64 x 64 of 64 x 4
        return tf.reduce_sum(tf.square(tf.matmul(tf.nn.softmax(scores), values))), {}

    with toy(attention) as step:
        step.restored(step.held(), EXECUTOR)
        again = [op for op in step.ops("BatchMatMulV2") if op.name.startswith("rebuilt/")]
        assert len(again) == 1
        assert len([op for op in step.ops("Softmax") if op.name.startswith("rebuilt/")]) == 1
