"""The order of a gradient's readers: control dependencies on the executor, fences under XLA."""

import tensorflow as tf
from toy import dense, reads, toy

from tf_comptrain.graph.passes.engine import readers_of_gate
from tf_comptrain.graph.passes.executor import EXECUTOR
from tf_comptrain.graph.passes.xla import XLA


def ordered(step, engine):
    """(readers of the gradient of the second product, what stands in for gradients)."""
    restored = step.restored(step.held(), engine)
    (gate, reads), *_ = [item for item in restored.readers if any(r.op.type == "MatMul" for r in item[1])]
    readers = readers_of_gate(step.step, gate, reads)
    return readers, engine.order(step.step, restored.order, readers)


def test_on_the_executor_the_input_gradient_waits_for_the_weights():
    with toy(dense) as step:
        readers, replaced = ordered(step, EXECUTOR)
        (product,) = readers.products
        (other,) = [op for op in readers.others if op.type == "MatMul"]
        assert product in other.control_inputs and replaced == {}
        assert "Comptrain>Fence" not in step.types()


def test_under_xla_both_pass_through_a_fence():
    with toy(dense, xla=True) as step:
        update = tf.identity(step.chosen.kernels[step.tensors["h"].ref()][0].gradient)
        readers, replaced = ordered(step, XLA)
        (product,) = readers.products
        (fence,) = [
            op for op in step.ops("Comptrain>Fence") if any(t is product.outputs[0] for t in op.inputs)
        ]
        assert reads(update.op, fence.outputs[1])
        (other,) = [op for op in readers.others if op.type == "MatMul"]
        assert list(fence.inputs) == [readers.gate, product.outputs[0]]
        assert reads(other, fence.outputs[0]) and not other.control_inputs
        assert replaced == {product.outputs[0].name: fence.outputs[1]}


def test_the_product_with_the_largest_tensor_comes_first():
    def two(x, first, second):
        wide = tf.sin(tf.concat([x, x, x], 0))
        narrow = tf.sin(x)
        a, b = tf.matmul(wide, first), tf.matmul(narrow, second)
        joined = tf.concat([a, b], 0)
        return tf.reduce_sum(tf.tanh(joined)), {"wide": wide}

    with toy(two) as step:
        reads = [read for read in step.needs.values if read.op.type == "MatMul"]
        readers = readers_of_gate(step.step, reads[0].gate, reads)
        sizes = [next(r.tensor.shape[0] for r in reads if r.op is op) for op in readers.products]
        assert sizes == sorted(sizes, reverse=True) and len(sizes) == 2
