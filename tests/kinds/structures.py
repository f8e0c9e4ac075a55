"""Graphs, points, fields and densities."""

import math

import tensorflow as tf
from kind import Kind, batches, cross_entropy, layers, sequential, supervised
from tensorflow import keras

NODES, EDGES = 200, 800


def _graph(rng):
    return rng.normal(size=(NODES, 64)), rng.integers(0, NODES, (EDGES, 2)), rng.integers(0, 4, NODES)


def graph_attention():
    """Scores of edges, normalized over each node's own by segments."""

    class Attention(keras.Model):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(64, 64), name="kernel")
            self.attention = self.add_weight(shape=(128, 1), name="attention")
            self.head = layers.Dense(4)
            self.head.build((None, 64))

        def call(self, states, edges):
            states = tf.matmul(states, self.kernel)
            pairs = tf.reshape(tf.gather(states, edges), (EDGES, 128))
            scores = tf.squeeze(tf.nn.leaky_relu(tf.matmul(pairs, self.attention)), -1)
            scores = tf.exp(tf.clip_by_value(scores, -2.0, 2.0))
            sums = tf.math.unsorted_segment_sum(scores, edges[:, 0], NODES)
            scores /= tf.gather(sums, edges[:, 0])
            messages = tf.gather(states, edges[:, 1]) * scores[:, None]
            return self.head(tf.nn.elu(tf.math.unsorted_segment_sum(messages, edges[:, 0], NODES)))

    model = Attention()
    model.build((None, 64))
    loss_of = lambda states, edges, labels: cross_entropy(labels, model(states, edges, training=True))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(_graph))


def message_passing():
    """Messages of pairs, their mean and maximum at each node, and a GRU cell's update."""

    class Passing(keras.Model):
        def __init__(self):
            super().__init__()
            self.message = sequential(layers.Dense(64, activation="relu"), layers.Dense(64), shape=(128,))
            self.cell = layers.GRUCell(64)
            self.head = layers.Dense(4)

        def call(self, states, edges):
            for _ in range(2):
                pairs = tf.concat([tf.gather(states, edges[:, 0]), tf.gather(states, edges[:, 1])], 1)
                messages = self.message(pairs)
                mean = tf.math.unsorted_segment_mean(messages, edges[:, 0], NODES)
                largest = tf.math.unsorted_segment_max(messages, edges[:, 0], NODES)
                states, _ = self.cell(mean + tf.maximum(largest, -10.0), [states])
            return self.head(states)

    model = Passing()
    model(tf.zeros((NODES, 64)), tf.zeros((EDGES, 2), tf.int32))
    loss_of = lambda states, edges, labels: cross_entropy(labels, model(states, edges, training=True))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(_graph))


def pointnet():
    """A transform that is learned, layers for each point, and a maximum over all of them."""
    points = keras.Input((128, 3))
    x = layers.Conv1D(32, 1, activation="relu")(points)
    x = layers.GlobalMaxPooling1D()(x)
    turned = layers.Reshape((3, 3))(layers.Dense(9)(x))
    x = layers.Dot(axes=(2, 1))([points, turned])
    x = layers.Conv1D(64, 1)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Conv1D(64, 1, activation="relu")(x)
    x = layers.Lambda(lambda t: tf.reduce_max(t, axis=1), output_shape=(64,))(x)
    model = keras.Model(points, layers.Dense(5)(layers.Dropout(0.3, seed=1)(x)))
    loss_of = lambda x, y: cross_entropy(y, model(x, training=True))  # noqa: E731
    make = lambda rng: (rng.normal(size=(32, 128, 3)), rng.integers(0, 5, 32))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))


def normalizing_flow():
    """Affine couplings: exponentials, a division on the way back, and the logarithm of the density."""
    networks = [
        sequential(layers.Dense(64, activation="relu"), layers.Dense(64), shape=(32,)) for _ in range(4)
    ]
    model = keras.Sequential(networks[:1])  # any of them may stand for the whole

    def loss_of(x):
        log_determinant = tf.zeros(tf.shape(x)[0])
        x = tf.math.log(x) - tf.math.log1p(-x)
        for k, network in enumerate(networks):
            a, b = tf.split(x, 2, axis=1)
            scale, shift = tf.split(network(a if k % 2 == 0 else b, training=True), 2, axis=1)
            scale = tf.tanh(scale)
            if k % 2 == 0:
                x = tf.concat([a, (b - shift) / tf.exp(scale)], 1)
            else:
                x = tf.concat([(a - shift) / tf.exp(scale), b], 1)
            log_determinant -= tf.reduce_sum(scale, 1)
        prior = -0.5 * tf.reduce_sum(x**2 + math.log(2.0 * math.pi), 1)
        return -tf.reduce_mean(prior + log_determinant)

    del model
    return Kind(
        networks, supervised(networks, loss_of), batches(lambda rng: (rng.uniform(0.05, 0.95, (256, 64)),))
    )


def physics_informed():
    """The residual of the heat equation: second derivatives with respect to the inputs."""
    model = sequential(
        layers.Dense(64, activation="tanh"),
        layers.Dense(64, activation="tanh"),
        layers.Dense(1),
        shape=(2,),
    )

    def loss_of(points, values):
        x, t = points[:, :1], points[:, 1:]
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape(persistent=True) as inner:
                inner.watch((x, t))
                u = model(tf.concat([x, t], 1), training=True)
            u_x, u_t = inner.gradient(u, x), inner.gradient(u, t)
        u_xx = outer.gradient(u_x, x)
        return tf.reduce_mean((u_t - 0.1 * u_xx) ** 2) + tf.reduce_mean((u - values) ** 2)

    make = lambda rng: (rng.uniform(-1, 1, (512, 2)), rng.normal(size=(512, 1)))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))


def score_matching():
    """An energy's gradient with respect to its input is trained: one tape in another."""
    model = sequential(layers.Dense(128, activation="softplus"), layers.Dense(1), shape=(64,))

    def loss_of(x, noise):
        moved = x + 0.5 * noise
        with tf.GradientTape() as inner:
            inner.watch(moved)
            energy = tf.reduce_sum(model(moved, training=True))
        return tf.reduce_mean((inner.gradient(energy, moved) - 2.0 * noise) ** 2)

    make = lambda rng: (rng.normal(size=(256, 64)), rng.normal(size=(256, 64)))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))
