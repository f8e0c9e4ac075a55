"""The decision carried out in the forward pass."""

import tensorflow as tf
from toy import dense, toy

from tf_comptrain import codecs
from tf_comptrain.storage import KEEP, holdings_of


def test_the_forward_pass_reads_behind_the_compression():
    with toy(dense) as step:
        held = step.held()
        compress, h = step.op("Comptrain>Compress"), step.tensors["h"]
        assert compress.inputs[0] is h and held.of(h).storage == "compress"
        assert [reader.type for reader in h.consumers()] == ["Comptrain>Compress"]
        assert "MatMul" in {reader.type for reader in compress.outputs[0].consumers()}


def test_what_is_kept_stays_and_later_gradients_are_told():
    with toy(dense, named=holdings_of({"h": KEEP})) as step:
        held = step.held()
        assert held.of(step.tensors["h"]) is None and "Comptrain>Compress" not in step.types()
        assert step.streams.why_plain(step.tensors["h"]) == "an earlier gradient of the step keeps it"


def test_a_stream_is_made_once_for_all_gradients_of_a_step():
    with toy(dense) as step:
        h = step.tensors["h"]
        assert step.held().of(h) is step.held().of(h)
        assert step.types().count("Comptrain>Compress") == 1


def test_what_a_gradient_has_wait_is_made_early():
    """TensorFlow makes the 1 / x of a logarithm when dy is there."""

    def logarithm(x, first, second):
        a = tf.matmul(tf.sin(x), first)
        return tf.reduce_sum(tf.square(tf.matmul(tf.math.log(a), second))), {"a": a}

    with toy(logarithm, codec=codecs.get("zvc")) as step:
        (late, early), *_ = [
            (reference.deref(), tensor)
            for reference, tensor in step.held().held_as.items()
            if reference.deref() is not tensor
        ]
        assert early.op.name.startswith("early/") and early.op.type == late.op.type
        assert step.step.gradients.waits(late.op) and not step.step.gradients.waits(early.op)
