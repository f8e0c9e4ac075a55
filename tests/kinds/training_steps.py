"""Steps that are not one forward pass, one backward pass and one update."""

import functools

import tensorflow as tf
from kind import Kind, adam, batches, cross_entropy, layers, sequential, supervised
from tensorflow import keras

import tf_comptrain as ct


def _classifier():
    return sequential(
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.LayerNormalization(),
        layers.Conv2D(32, 3, strides=2, padding="same", activation="gelu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(64, activation="tanh"),
        layers.Dense(5),
        shape=(32, 32, 3),
    )


def _images(rng, count=16):
    return rng.normal(size=(count, 32, 32, 3)), rng.integers(0, 5, count)


def _of_a_classifier(step):
    """Makes a function without arguments, as those of the other kinds are, of a step of a classifier."""

    @functools.wraps(step)
    def make():
        model = _classifier()
        variables = model.trainable_variables
        bound = functools.partial(step, model, variables, adam(variables))
        return Kind((model,), bound, batches(_images))

    return make


@_of_a_classifier
def accumulation(model, variables, optimizer, images, labels):
    """Four micro-batches, one update."""
    total, sums = 0.0, [tf.zeros_like(v) for v in variables]
    for x, y in zip(tf.split(images, 4), tf.split(labels, 4)):
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x, training=True)) / 4.0
        sums = [a + b for a, b in zip(sums, tape.gradient(loss, variables))]
        total += loss
    optimizer.apply_gradients(zip(sums, variables))
    return total, sums


@_of_a_classifier
def accumulation_in_a_loop(model, variables, optimizer, images, labels):
    """Micro-batches in a loop of the graph, each with a backward pass of its own in there."""

    def one(sums, micro):
        x, y = micro
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, model(x, training=True)) / 4.0
        return (sums[0] + loss, *(a + b for a, b in zip(sums[1:], tape.gradient(loss, variables))))

    start = (tf.constant(0.0), *(tf.zeros(v.shape) for v in variables))
    micro = tf.reshape(images, (4, 4, 32, 32, 3)), tf.reshape(labels, (4, 4))
    _, total, *sums = tf.while_loop(
        lambda k, *_: k < 4,
        lambda k, *sums: (k + 1, *one(sums, (micro[0][k], micro[1][k]))),
        (tf.constant(0), *start),
    )
    optimizer.apply_gradients(zip(sums, variables))
    return total, sums


def reptile():
    """Three steps of plain descent from the same weights, then a step towards where they led."""
    model = _classifier()
    variables = model.trainable_variables

    def step(images, labels):
        before = [tf.identity(v) for v in variables]
        total = 0.0
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = cross_entropy(labels, model(images, training=True))
            for v, gradient in zip(variables, tape.gradient(loss, variables)):
                v.assign_sub(0.05 * gradient)
            total += loss
        moved = [v - old for v, old in zip(variables, before)]
        for v, old, away in zip(variables, before, moved):
            v.assign(old + 0.5 * away)
        return total, moved

    return Kind((model,), step, batches(_images))


def maml():
    """The gradient through a step of descent, of first order inside and of second outside."""

    class Regressor(keras.Model):
        def build(self, shape):
            self.first = self.add_weight(shape=(32, 64), name="first")
            self.second = self.add_weight(shape=(64, 1), name="second")

        def call(self, x, weights=None):
            first, second = weights or (self.first, self.second)
            return tf.matmul(tf.tanh(tf.matmul(x, first)), second)

    model = Regressor()
    model.build((None, 32))
    variables = model.trainable_variables

    def loss_of(x, y, other_x, other_y):
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        fast = [v - 0.1 * g for v, g in zip(variables, inner.gradient(loss, variables))]
        return tf.reduce_mean((model(other_x, weights=fast, training=True) - other_y) ** 2)

    make = lambda rng: tuple(rng.normal(size=(128, size)) for size in (32, 1, 32, 1))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))


def recompute_grad():
    """A block of which TensorFlow holds the input alone."""
    inside = sequential(
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        shape=(32, 32, 32),
    )
    stem = sequential(layers.Conv2D(32, 3, padding="same", activation="tanh"), shape=(32, 32, 3))
    head = sequential(layers.GlobalAveragePooling2D(), layers.Dense(5), shape=(32, 32, 32))
    block = tf.recompute_grad(lambda x: inside(x, training=True))

    def loss_of(images, labels):
        return cross_entropy(labels, head(block(stem(images, training=True)), training=True))

    models = (stem, inside, head)
    return Kind(models, supervised(models, loss_of), batches(_images))


@_of_a_classifier
def persistent_tape(model, variables, optimizer, images, labels):
    """Two losses of one forward pass, with the gradients of each by itself."""
    with tf.GradientTape(persistent=True) as tape:
        logits = model(images, training=True)
        first = cross_entropy(labels, logits)
        second = 0.1 * tf.reduce_mean(logits**2)
    a, b = tape.gradient(first, variables), tape.gradient(second, variables)
    gradients = [x + y for x, y in zip(a, b)]
    optimizer.apply_gradients(zip(gradients, variables))
    return first + second, gradients


def model_in_a_condition():
    """One of two networks, by a value of the batch."""
    first, second = _classifier(), _classifier()

    def loss_of(images, labels):
        logits = tf.cond(
            tf.reduce_mean(images) > -10.0,
            lambda: first(images, training=True),
            lambda: second(images, training=True),
        )
        return cross_entropy(labels, logits)

    return Kind((first, second), supervised([first, second], loss_of), batches(_images))


@_of_a_classifier
def step_in_a_condition(model, variables, optimizer, images, labels):
    """The whole step, gradient and all, in a branch."""

    def train():
        with tf.GradientTape() as tape:
            loss = cross_entropy(labels, model(images, training=True))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        return (loss, *gradients)

    loss, *gradients = tf.cond(
        tf.reduce_mean(images) > -10.0,
        train,
        lambda: (tf.constant(0.0), *(tf.zeros(v.shape) for v in variables)),
    )
    return loss, gradients


@_of_a_classifier
def sharpness_aware(model, variables, optimizer, images, labels):
    """Two gradients in a step, the second at weights that the first has moved."""
    with tf.GradientTape() as tape:
        loss = cross_entropy(labels, model(images, training=True))
    found = tape.gradient(loss, variables)
    scale = 0.05 / (tf.linalg.global_norm(found) + 1e-12)
    for v, gradient in zip(variables, found):
        v.assign_add(scale * gradient)
    with tf.GradientTape() as tape:
        moved_loss = cross_entropy(labels, model(images, training=True))
    gradients = tape.gradient(moved_loss, variables)
    for v, gradient in zip(variables, found):
        v.assign_sub(scale * gradient)
    optimizer.apply_gradients(zip(gradients, variables))
    return loss, gradients


@_of_a_classifier
def input_gradients(model, variables, optimizer, images, labels):
    """A fast attack: the gradient with respect to the images, then one with respect to the weights."""
    with ct.training_scope(), tf.GradientTape() as tape:
        tape.watch(images)
        loss = cross_entropy(labels, model(images, training=True))
        found = tape.gradient(loss, images)
    attacked = images + 0.1 * tf.tanh(1e3 * found)
    with tf.GradientTape() as tape:
        loss = cross_entropy(labels, model(attacked, training=True))
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables))
    return loss, gradients


def jacobian_penalty():
    """Per-sample gradients of the outputs, which TensorFlow vectorizes."""
    model = sequential(layers.Dense(64, activation="tanh"), layers.Dense(3), shape=(64,))
    variables = model.trainable_variables
    optimizer = adam(variables)

    def step(x, labels):
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                logits = model(x, training=True)
            jacobian = inner.batch_jacobian(logits, x)
            loss = cross_entropy(labels, logits) + 0.1 * tf.reduce_mean(tf.reduce_sum(jacobian**2, (1, 2)))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables))
        return loss, gradients

    return Kind((model,), step, batches(lambda rng: (rng.normal(size=(128, 64)), rng.integers(0, 3, 128))))
