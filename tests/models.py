"""Small models and data that several tests use."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.python.eager import context

layers = keras.layers


def images(count=8, size=16, channels=3, classes=10, seed=0):
    """(x, y): random images with a class-dependent offset, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, count)
    x = rng.normal(size=(count, size, size, channels)) + y[:, None, None, None] / classes
    return x.astype("float32"), y.astype("int64")


def compiled(model, optimizer=None, **kwargs):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.05, momentum=0.9), loss, **kwargs)
    return model


def small_cnn(seed=0, size=16, channels=3):
    """conv-BN-ReLU, conv+relu, max pool, a shortcut, dropout, dense: one of each main rule."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((size, size, channels))
    x = layers.Conv2D(32, 3, padding="same", use_bias=False, name="conv1")(inputs)
    x = layers.BatchNormalization(name="bn1")(x)
    x = shortcut = layers.ReLU(name="relu1")(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2")(x)
    x = layers.Add(name="add")([x, shortcut])
    x = layers.MaxPooling2D(name="pool")(x)
    x = layers.Dropout(0.25, seed=1, name="dropout")(x)
    x = layers.Flatten(name="flatten")(x)
    x = layers.Dense(64, activation="relu", name="dense1")(x)
    return keras.Model(inputs, layers.Dense(10, name="dense2")(x), name="small_cnn")


def chain(depth, activation="relu", size=32, filters=32):
    """`depth` equal convolutions: what each layer adds to the peak is what it holds."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((size, size, filters))
    for k in range(depth):
        x = layers.Conv2D(filters, 3, padding="same", activation=activation, name=f"conv{k}")(x)
    model = keras.Model(inputs, layers.GlobalAveragePooling2D()(x), name=f"chain{depth}")
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model


def gradients(model, x, y, graph=True):
    """Gradients of one training step by variable path, and the loss."""

    def compute(x, y):
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
        return loss, tape.gradient(loss, model.trainable_variables)

    loss, values = (tf.function(compute) if graph else compute)(tf.constant(x), tf.constant(y))
    return float(np.sum(loss)), {v.path: g.numpy() for v, g in zip(model.trainable_variables, values)}


def site_of(handle, fragment):
    """The one site of an instrumented model whose name has that in it: of an operation, or "layer/role"."""
    found = [site for name, site in handle.sites().items() if fragment in name]
    assert len(found) == 1, (fragment, list(handle.sites()))
    return found[0]


def rows_of(report, fragment):
    """Rows of a report whose operation has that in its name."""
    return [row for row in report.rows if fragment in row.layer]


def by_layer(found):
    """Updates of bounds, or checks of the law, by the layer whose weight they are of; the last of each."""
    return {one.layer.rpartition(" -> ")[2].split("/")[-2]: one for one in found}


def optimized_graph(model, x, y):
    """name -> node of the train step as executed, after TensorFlow's graph optimization."""
    context.enable_run_metadata()
    context.export_run_metadata()  # what ran since another test asked: TensorFlow goes on noting it down
    try:
        model.train_on_batch(x, y)
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    graphs = [g.post_optimization_graph for g in metadata.function_graphs]
    return {node.name: node for node in max(graphs, key=lambda graph: len(graph.node)).node}
