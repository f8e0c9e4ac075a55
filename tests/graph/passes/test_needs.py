"""What a backward pass reads, sorted by what it needs of it."""

import tensorflow as tf
from toy import dense, toy

from tf_comptrain import codecs
from tf_comptrain.graph import operations


def pooled(x, first, second):
    images = tf.reshape(tf.matmul(x, first), (4, 4, 4, 64))
    pool = tf.nn.max_pool2d(images, 2, 2, "SAME")
    return tf.reduce_sum(tf.square(tf.tensordot(pool, second, 1))), {"pool": pool}


def test_a_relu_is_asked_for_its_signs_and_a_product_for_values():
    with toy(dense) as step:
        assert [read.op.type for read in step.needs.signs] == ["ReluGrad"]
        assert step.needs.masked == {step.tensors["h"].ref()}
        assert any(
            read.tensor is step.tensors["h"] and read.op.type == "MatMul" for read in step.needs.values
        )
        assert not any(read.need == operations.SIGN for read in step.needs.values)


def test_of_a_pass_that_another_tape_records_no_relu_goes():
    with toy(dense, recorded=True) as step:
        assert step.needs.masked == frozenset() and len(step.needs.signs) == 1


def test_positions_stand_in_for_the_values_of_a_pooling():
    with toy(pooled) as step:
        assert [op.type for op in step.needs.poolings] == ["MaxPoolGrad"]
        assert not any(read.op.type == "MaxPoolGrad" for read in step.needs.values)
    with toy(pooled, recorded=True) as step:
        assert step.needs.poolings == ()
        assert any(read.op.type == "MaxPoolGrad" for read in step.needs.values)


def test_lossless_streams_may_stand_where_no_error_may():
    def inverse(x, first, second):
        y = tf.matmul(x, first)
        y /= tf.norm(y[:, :2], axis=-1, keepdims=True)
        return tf.reduce_sum(tf.square(tf.matmul(y, second))), {}

    def needs(codec):
        with toy(inverse, codec=codecs.get(codec)) as step:
            return [read.need for read in step.needs.values]

    assert needs("plane").count(operations.UNBOUNDED) > needs("zvc").count(operations.UNBOUNDED)
