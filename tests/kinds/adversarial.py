"""Models that are trained against, or beside, others."""

import tensorflow as tf
from kind import Kind, adam, batches, cross_entropy, layers, sequential, supervised
from tensorflow import keras


def _generator(normalized):
    norm = [layers.BatchNormalization()] if normalized else []
    return sequential(
        layers.Dense(8 * 8 * 32),
        *norm,
        layers.LeakyReLU(),
        layers.Reshape((8, 8, 32)),
        layers.Conv2DTranspose(32, 4, strides=2, padding="same"),
        layers.LeakyReLU(),
        layers.Conv2DTranspose(3, 4, strides=2, padding="same", activation="tanh"),
        shape=(16,),
    )


def _critic(activation=None, wrap=lambda layer: layer):
    activate = activation or (lambda: layers.LeakyReLU(0.2))
    return sequential(
        wrap(layers.Conv2D(32, 4, strides=2, padding="same")),
        activate(),
        wrap(layers.Conv2D(32, 4, strides=2, padding="same")),
        activate(),
        layers.Flatten(),
        layers.Dense(1),
        shape=(32, 32, 3),
    )


def _images_and_noise(rng):
    return rng.normal(size=(16, 32, 32, 3)), rng.normal(size=(16, 16))


def dcgan():
    """Two tapes, two optimizers, in one step."""
    generator, discriminator = _generator(True), _critic()
    first, second = adam(generator.trainable_variables), adam(discriminator.trainable_variables)
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def step(real, noise):
        with tf.GradientTape() as g_tape, tf.GradientTape() as d_tape:
            fake = generator(noise, training=True)
            said_real, said_fake = discriminator(real, training=True), discriminator(fake, training=True)
            g_loss = entropy(tf.ones_like(said_fake), said_fake)
            d_loss = entropy(tf.ones_like(said_real), said_real) + entropy(
                tf.zeros_like(said_fake), said_fake
            )
        g_gradients = g_tape.gradient(g_loss, generator.trainable_variables)
        d_gradients = d_tape.gradient(d_loss, discriminator.trainable_variables)
        first.apply_gradients(zip(g_gradients, generator.trainable_variables))
        second.apply_gradients(zip(d_gradients, discriminator.trainable_variables))
        return g_loss + d_loss, [*g_gradients, *d_gradients]

    return Kind((generator, discriminator), step, batches(_images_and_noise))


def gan_in_fit_style():
    """The discriminator's update stands between the two backward passes, as in Keras' own example."""
    generator, discriminator = _generator(True), _critic()
    first, second = adam(generator.trainable_variables), adam(discriminator.trainable_variables)
    entropy = keras.losses.BinaryCrossentropy(from_logits=True)

    def step(real, noise):
        both = tf.concat([generator(noise), real], 0)
        labels = tf.concat([tf.ones((16, 1)), tf.zeros((16, 1))], 0)
        with tf.GradientTape() as tape:
            d_loss = entropy(labels, discriminator(both))
        d_gradients = tape.gradient(d_loss, discriminator.trainable_variables)
        second.apply_gradients(zip(d_gradients, discriminator.trainable_variables))
        with tf.GradientTape() as tape:
            g_loss = entropy(tf.zeros((16, 1)), discriminator(generator(noise)))
        g_gradients = tape.gradient(g_loss, generator.trainable_variables)
        first.apply_gradients(zip(g_gradients, generator.trainable_variables))
        return g_loss + d_loss, [*g_gradients, *d_gradients]

    return Kind((generator, discriminator), step, batches(_images_and_noise))


def _wgan(activation):
    generator, critic = _generator(False), _critic(activation)
    first, second = adam(generator.trainable_variables), adam(critic.trainable_variables)

    def step(real, noise):
        with tf.GradientTape() as tape:
            fake = generator(noise, training=True)
            between = 0.3 * real + 0.7 * fake
            with tf.GradientTape() as inner:
                inner.watch(between)
                said = critic(between, training=True)
            slope = tf.norm(tf.reshape(inner.gradient(said, between), (16, -1)), axis=1)
            penalty = tf.reduce_mean((slope - 1.0) ** 2)
            scores = tf.reduce_mean(critic(fake, training=True)) - tf.reduce_mean(critic(real, training=True))
            d_loss = scores + 10.0 * penalty
        d_gradients = tape.gradient(d_loss, critic.trainable_variables)
        second.apply_gradients(zip(d_gradients, critic.trainable_variables))
        with tf.GradientTape() as tape:
            g_loss = -tf.reduce_mean(critic(generator(noise, training=True), training=True))
        g_gradients = tape.gradient(g_loss, generator.trainable_variables)
        first.apply_gradients(zip(g_gradients, generator.trainable_variables))
        return d_loss, [*d_gradients, *g_gradients]

    return Kind((generator, critic), step, batches(_images_and_noise))


def wgan_gp():
    """The gradient of the norm of a gradient."""
    return _wgan(None)


def wgan_gp_smooth():
    """As wgan_gp, with an activation whose second derivative is not zero."""
    return _wgan(lambda: layers.Activation("tanh"))


def spectral_normalization():
    """The layer assigns its weights before it runs."""
    critic = _critic(wrap=layers.SpectralNormalization)
    loss_of = lambda real, noise: tf.reduce_mean(tf.nn.softplus(critic(real, training=True)))  # noqa: E731
    return Kind((critic,), supervised([critic], loss_of), batches(_images_and_noise))


def distillation():
    """A teacher that is not trained, and a student that follows its softened probabilities."""

    def network(width):
        return sequential(
            layers.Conv2D(width, 3, padding="same", activation="relu"),
            layers.Conv2D(width, 3, strides=2, padding="same", activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
            shape=(32, 32, 3),
        )

    teacher, student = network(32), network(16)
    teacher.trainable = False

    def loss_of(images, labels):
        soft = tf.nn.softmax(teacher(images, training=False) / 3.0)
        logits = student(images, training=True)
        apart = keras.losses.KLDivergence()(soft, tf.nn.softmax(logits / 3.0))
        return 0.1 * cross_entropy(labels, logits) + 9.0 * apart

    make = lambda rng: (rng.normal(size=(16, 32, 32, 3)), rng.integers(0, 10, 16))  # noqa: E731
    return Kind((teacher, student), supervised([student], loss_of), batches(make))


def actor_critic():
    """Two heads, returns of an episode, and a model that nobody tells that it trains."""
    inputs = keras.Input((24,))
    shared = layers.Dense(128, activation="relu")(inputs)
    shared = layers.Dense(128, activation="tanh")(shared)
    model = keras.Model(inputs, [layers.Dense(4)(shared), layers.Dense(1)(shared)])

    def loss_of(states, actions, returns):
        logits, values = model(states)
        values = tf.squeeze(values, 1)
        advantage = returns - values
        chosen = tf.math.log(tf.gather(tf.nn.softmax(logits), actions, axis=1, batch_dims=1))
        actor = -tf.reduce_sum(chosen * tf.stop_gradient(advantage))
        critic = keras.losses.Huber(reduction="sum")(returns[:, None], values[:, None])
        return (actor + critic) / 200.0

    make = lambda rng: (rng.normal(size=(400, 24)), rng.integers(0, 4, 400), rng.normal(size=400))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))
