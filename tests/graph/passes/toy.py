"""Small steps, traced and not run: what a pass gets, and what it makes of it."""

import contextlib
from typing import Any, NamedTuple

import tensorflow as tf

from tf_comptrain import _keras, codecs, native
from tf_comptrain.graph.held.sites import Sites
from tf_comptrain.graph.held.streams_of_step import StreamsOfStep
from tf_comptrain.graph.held.wishes import Wishes
from tf_comptrain.graph.passes.choice import choose_held
from tf_comptrain.graph.passes.decision import decide
from tf_comptrain.graph.passes.needs import needs_of
from tf_comptrain.graph.passes.restoring import restore
from tf_comptrain.graph.passes.step import traced_step
from tf_comptrain.graph.passes.streams import make_streams
from tf_comptrain.storage import Engine

ROWS, COLUMNS = 64, 64


class Toy(NamedTuple):
    """A step before it is rewired, and what the passes that change nothing say of it."""

    step: Any
    streams: Any
    needs: Any
    chosen: Any
    decision: Any
    tensors: dict

    def holding(self, name):
        return self.decision.of(self.tensors[name])

    def op(self, kind):
        """The only operation of a type."""
        (found,) = self.ops(kind)
        return found

    def ops(self, kind):
        return [op for op in self.step.backward.graph.get_operations() if op.type == kind]

    def types(self):
        return [op.type for op in self.step.backward.graph.get_operations()]

    def held(self):
        return make_streams(self.step, self.decision, self.streams)

    def restored(self, held, engine):
        return restore(self.step, self.needs, self.decision, held, engine.late)


def reads(op, tensor):
    return any(read is tensor for read in op.inputs)


@contextlib.contextmanager
def toy(loss, weights=2, xla=False, recorded=False, **wishes):
    """Traces `loss(x, *weights)`, which returns the loss and tensors by name; the graph is open inside."""
    native.ops()
    variables = [tf.Variable(tf.ones((COLUMNS, COLUMNS)), name=f"w{k}") for k in range(weights)]
    sites, passes = Sites(), []
    graph = tf.__internal__.FuncGraph("toy")
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, (ROWS, COLUMNS), name="x")
        with tf.GradientTape() as tape:
            value, tensors = loss(x, *variables)
        with _keras.on_gradients(passes.append):
            tape.gradient(value, variables)
        step = traced_step(passes[0]._replace(xla=xla, recorded=recorded))
        wishes.setdefault("codec", codecs.get("plane"))
        streams = StreamsOfStep(Wishes(**wishes), sites, Engine(xla, False, "CPU"))
        streams.recorded = recorded
        needs = needs_of(step, streams)
        chosen = choose_held(step, needs, streams)
        yield Toy(step, streams, needs, chosen, decide(step, needs, chosen, streams), tensors)


def dense(x, first, second):
    """Two products with a ReLU between them."""
    h = tf.nn.relu(tf.matmul(tf.sin(x), first), name="h")
    return tf.reduce_sum(tf.square(tf.matmul(h, second))), {"h": h}


def smooth(x, first, second):
    """A function of several steps between two products."""
    a = tf.matmul(tf.sin(x), first)
    h = a * tf.sigmoid(a)
    return tf.reduce_sum(tf.square(tf.matmul(h, second))), {"a": a, "h": h}
