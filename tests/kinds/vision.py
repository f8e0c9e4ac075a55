"""Images, volumes and what is said of them."""

import math

import tensorflow as tf
from kind import FromKeras, Kind, adam, batches, cross_entropy, layers, sequential, supervised
from tensorflow import keras


def _features(width=32, size=32, head=()):
    return sequential(
        layers.Conv2D(width, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(width, 3, padding="same", activation="relu"),
        layers.GlobalAveragePooling2D(),
        *head,
        shape=(size, size, 3),
    )


def vae():
    """Reparametrized, with a divergence of exponentials."""
    encoder = sequential(
        layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
        layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dense(64),
        shape=(32, 32, 1),
    )
    decoder = sequential(
        layers.Dense(8 * 8 * 32, activation="relu"),
        layers.Reshape((8, 8, 32)),
        layers.Conv2DTranspose(32, 3, strides=2, padding="same", activation="relu"),
        layers.Conv2DTranspose(1, 3, strides=2, padding="same", activation="sigmoid"),
        shape=(32,),
    )

    def loss_of(images, noise):
        mean, log_variance = tf.split(encoder(images, training=True), 2, axis=1)
        shown = decoder(mean + tf.exp(0.5 * log_variance) * noise, training=True)
        entropy = keras.losses.binary_crossentropy(images, shown)
        divergence = -0.5 * (1.0 + log_variance - tf.square(mean) - tf.exp(log_variance))
        return tf.reduce_mean(tf.reduce_sum(entropy, (1, 2))) + tf.reduce_mean(tf.reduce_sum(divergence, 1))

    make = lambda rng: (rng.uniform(size=(32, 32, 32, 1)), rng.normal(size=(32, 32)))  # noqa: E731
    return Kind((encoder, decoder), supervised([encoder, decoder], loss_of), batches(make))


def _residual(x, width):
    skip = x if x.shape[-1] == width else layers.Conv2D(width, 1)(x)
    x = layers.GroupNormalization(4)(x)
    x = layers.Conv2D(width, 3, padding="same", activation="swish")(x)
    x = layers.Conv2D(width, 3, padding="same")(x)
    return layers.Add()([x, skip])


def diffusion():
    """A U-Net that is told the level of noise by sines, and predicts the noise."""
    images, level = keras.Input((16, 16, 3)), keras.Input((1, 1, 1))
    frequencies = 2.0 * math.pi * tf.exp(tf.linspace(0.0, 5.0, 8))
    embedded = layers.Lambda(
        lambda v: tf.concat([tf.sin(frequencies * v), tf.cos(frequencies * v)], 3), output_shape=(1, 1, 16)
    )(level)
    x = layers.Concatenate()([layers.Conv2D(16, 1)(images), layers.UpSampling2D(16)(embedded)])
    skips = []
    for width in (32, 48):
        x = _residual(x, width)
        skips.append(x)
        x = layers.AveragePooling2D(2)(x)
    x = _residual(x, 64)
    for width in (48, 32):
        x = layers.UpSampling2D(interpolation="bilinear")(x)
        x = _residual(layers.Concatenate()([x, skips.pop()]), width)
    model = keras.Model([images, level], layers.Conv2D(3, 1, kernel_initializer="zeros")(x))

    def loss_of(images, noise, times):
        angle = 0.1 + 1.4 * times[:, None, None, None]
        signal, noisy = tf.cos(angle), tf.sin(angle)
        predicted = model([signal * images + noisy * noise, noisy**2], training=True)
        return tf.reduce_mean(tf.abs(noise - predicted))

    make = lambda rng: (  # noqa: E731
        rng.normal(size=(8, 16, 16, 3)),
        rng.normal(size=(8, 16, 16, 3)),
        rng.uniform(size=8),
    )
    return Kind((model,), supervised([model], loss_of), batches(make))


def simclr():
    """Two views through one encoder, normalized, and a similarity of all pairs."""
    encoder = _features(head=(layers.Dense(64, activation="relu"), layers.Dense(64)))

    def loss_of(first, second):
        a = tf.math.l2_normalize(encoder(first, training=True), axis=1)
        b = tf.math.l2_normalize(encoder(second, training=True), axis=1)
        similarities = tf.matmul(a, b, transpose_b=True) / 0.1
        labels = tf.range(tf.shape(a)[0])
        return cross_entropy(labels, similarities) + cross_entropy(labels, tf.transpose(similarities))

    def make(rng):
        images = rng.normal(size=(32, 32, 32, 3))
        return images, images + 0.3 * rng.normal(size=images.shape)

    return Kind((encoder,), supervised([encoder], loss_of), batches(make))


def siamese():
    """Shared layers, a distance, and a contrastive loss with a maximum."""
    tower = _features(head=(layers.Dense(64, activation="tanh"),))
    left, right = keras.Input((32, 32, 3)), keras.Input((32, 32, 3))
    apart = layers.Lambda(
        lambda ab: tf.sqrt(tf.reduce_sum(tf.square(ab[0] - ab[1]), 1, keepdims=True) + 1e-6),
        output_shape=(1,),
    )([tower(left), tower(right)])
    model = keras.Model([left, right], apart)

    def loss_of(a, b, same):
        distance = tf.squeeze(model([a, b], training=True), 1)
        return tf.reduce_mean(same * distance**2 + (1.0 - same) * tf.maximum(1.0 - distance, 0.0) ** 2)

    make = lambda rng: (  # noqa: E731
        rng.normal(size=(16, 32, 32, 3)),
        rng.normal(size=(16, 32, 32, 3)),
        1.0 * rng.integers(0, 2, 16),
    )
    return Kind((model,), supervised([model], loss_of), batches(make))


def triplet():
    """Anchors, positives and negatives through one network."""
    model = _features(head=(layers.Dense(64), layers.UnitNormalization()))

    def loss_of(anchor, positive, negative):
        a, p, n = (model(images, training=True) for images in (anchor, positive, negative))
        near, far = tf.reduce_sum((a - p) ** 2, 1), tf.reduce_sum((a - n) ** 2, 1)
        return tf.reduce_mean(tf.nn.relu(near - far + 0.5))

    make = lambda rng: tuple(rng.normal(size=(3, 8, 32, 32, 3)))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))


def unet():
    """Segmentation: skips, transposed convolutions, batch normalization, a loss of overlap."""
    inputs = keras.Input((32, 32, 3))

    def block(x, width):
        for _ in range(2):
            x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    first = block(inputs, 16)
    second = block(layers.MaxPooling2D()(first), 32)
    x = block(layers.MaxPooling2D()(second), 48)
    x = layers.Conv2DTranspose(32, 2, strides=2)(x)
    x = block(layers.Concatenate()([x, second]), 32)
    x = layers.Conv2DTranspose(16, 2, strides=2)(x)
    x = block(layers.Concatenate()([x, first]), 16)
    model = keras.Model(inputs, layers.Conv2D(1, 1)(x))

    def loss_of(images, masks):
        logits = model(images, training=True)
        said = tf.sigmoid(logits)
        overlap = (2.0 * tf.reduce_sum(said * masks) + 1.0) / (
            tf.reduce_sum(said) + tf.reduce_sum(masks) + 1.0
        )
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=masks, logits=logits)
        return tf.reduce_mean(entropy) + 1.0 - overlap

    make = lambda rng: (rng.normal(size=(8, 32, 32, 3)), 1.0 * rng.integers(0, 2, (8, 32, 32, 1)))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))


def detector():
    """Class and box heads on two levels, focal loss, boxes of the positives alone."""
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(inputs)
    fine = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(x)
    coarse = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(fine)
    classes = layers.Conv2D(4, 3, padding="same")
    boxes = layers.Conv2D(4, 3, padding="same")
    heads = [
        layers.Concatenate(axis=1)([layers.Reshape((-1, 4))(head(level)) for level in (fine, coarse)])
        for head in (classes, boxes)
    ]
    model = keras.Model(inputs, heads)

    def loss_of(images, labels, targets):
        logits, found = model(images, training=True)
        one_hot = tf.one_hot(labels, 5)[..., 1:]
        p = tf.sigmoid(logits)
        entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=one_hot, logits=logits)
        alpha = tf.where(tf.equal(one_hot, 1.0), 0.25, 0.75)
        apart = tf.where(tf.equal(one_hot, 1.0), 1.0 - p, p)
        focal = tf.reduce_sum(alpha * tf.pow(apart, 2.0) * entropy)
        positive = tf.cast(labels > 0, tf.float32)
        off = tf.abs(targets - found)
        smooth = tf.where(off < 1.0, 0.5 * off**2, off - 0.5)
        box = tf.reduce_sum(positive[..., None] * smooth)
        return (focal + box) / (tf.reduce_sum(positive) + 1.0)

    anchors = 16 * 16 + 8 * 8
    make = lambda rng: (  # noqa: E731
        rng.normal(size=(8, 32, 32, 3)),
        rng.integers(0, 5, (8, anchors)),
        rng.normal(size=(8, anchors, 4)),
    )
    return Kind((model,), supervised([model], loss_of), batches(make))


def style_transfer():
    """A frozen network, and the gradient of Gram matrices with respect to the image."""
    features = sequential(
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.AveragePooling2D(2),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        shape=(48, 48, 3),
    )
    features.trainable = False
    image = tf.Variable(tf.random.stateless_normal((2, 48, 48, 3), (1, 2)))
    optimizer = adam([image], 0.02)

    def gram(x):
        return tf.einsum("bijc,bijd->bcd", x, x) / (24.0 * 24.0)

    def step(style):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((gram(features(image)) - gram(features(style))) ** 2)
            loss += 1e-3 * tf.reduce_sum(tf.image.total_variation(image)) / 4608.0
        gradient = tape.gradient(loss, image)
        optimizer.apply_gradients([(gradient, image)])
        return loss, [gradient]

    return Kind((features,), step, batches(lambda rng: (rng.normal(size=(2, 48, 48, 3)),)))


def tied_autoencoder():
    """The decoder's weights are the encoder's, transposed."""

    class Tied(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoders = [layers.Dense(width, activation="relu") for width in (256, 64)]

        def build(self, shape):
            for encoder, size in zip(self.encoders, (784, 256)):
                encoder.build((None, size))
            self.biases = [self.add_weight(shape=(size,), name=f"bias{size}") for size in (784, 256)]

        def call(self, x):
            for encoder in self.encoders:
                x = encoder(x)
            for encoder, bias in zip(self.encoders[::-1], self.biases[::-1]):
                x = tf.nn.tanh(tf.matmul(x, encoder.kernel, transpose_b=True) + bias)
            return x

    model = Tied()
    model.build((None, 784))
    loss_of = lambda x: tf.reduce_mean((model(x, training=True) - x) ** 2)  # noqa: E731
    return Kind(
        (model,), supervised([model], loss_of), batches(lambda rng: (0.3 * rng.normal(size=(256, 784)),))
    )


def conv3d():
    """`fit` of a network for volumes."""
    model = sequential(
        layers.Conv3D(16, 3, padding="same", activation="relu"),
        layers.MaxPooling3D(),
        layers.BatchNormalization(),
        layers.Conv3D(16, 3, padding="same", activation="relu"),
        layers.GlobalAveragePooling3D(),
        layers.Dense(32, activation="relu"),
        layers.Dropout(0.3, seed=1),
        layers.Dense(2),
        shape=(16, 16, 16, 1),
    )
    model.compile(keras.optimizers.SGD(0.02), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    make = lambda rng: (rng.normal(size=(8, 16, 16, 16, 1)), rng.integers(0, 2, 8))  # noqa: E731
    return Kind((model,), FromKeras(model).run, batches(make))


def vision_transformer():
    """Written with TensorFlow's operations alone, on a tf.Module's variables in a keras.Model."""
    width, heads, blocks = 64, 4, 2

    class Transformer(keras.Model):
        def build(self, shape):
            def weight(name, *size):
                return self.add_weight(shape=size, name=name, initializer="glorot_uniform")

            self.patch = weight("patch", 4, 4, 3, width)
            self.position = weight("position", 64, width)
            self.inside = [
                {
                    "qkv": weight(f"qkv{k}", width, 3 * width),
                    "out": weight(f"out{k}", width, width),
                    "up": weight(f"up{k}", width, 4 * width),
                    "down": weight(f"down{k}", 4 * width, width),
                    "gains": self.add_weight(shape=(2, width), name=f"gains{k}", initializer="ones"),
                }
                for k in range(blocks)
            ]
            self.head = weight("head", width, 10)

        def call(self, images):
            x = tf.nn.conv2d(images, self.patch, 4, "VALID")
            x = tf.reshape(x, (-1, 64, width)) + self.position
            for w in self.inside:
                x += self.attend(norm(x, w["gains"][0]), w)
                x += tf.matmul(tf.nn.gelu(tf.matmul(norm(x, w["gains"][1]), w["up"])), w["down"])
            return tf.matmul(tf.reduce_mean(x, 1), self.head)

        def attend(self, x, w):
            qkv = tf.reshape(tf.matmul(x, w["qkv"]), (-1, 64, 3, heads, width // heads))
            q, k, v = tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))
            scores = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / math.sqrt(width / heads))
            mixed = tf.transpose(tf.matmul(scores, v), (0, 2, 1, 3))
            return tf.matmul(tf.reshape(mixed, (-1, 64, width)), w["out"])

    def norm(x, gain):
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-6) * gain

    model = Transformer()
    model.build((None, 32, 32, 3))
    loss_of = lambda x, y: cross_entropy(y, model(x, training=True))  # noqa: E731
    make = lambda rng: (rng.normal(size=(8, 32, 32, 3)), rng.integers(0, 10, 8))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))


def nerf():
    """Positional encoding, a network with a skip, and rendering along rays with a cumulative product."""
    inputs = keras.Input((63,))
    x = inputs
    for k in range(4):
        x = layers.Dense(64, activation="relu")(x)
        if k == 2:
            x = layers.Concatenate()([x, inputs])
    model = keras.Model(inputs, layers.Dense(4)(x))

    def loss_of(points, colours):
        encoded = [points]
        for k in range(10):
            encoded += [tf.sin(2.0**k * points), tf.cos(2.0**k * points)]
        flat = tf.reshape(tf.concat(encoded, -1), (-1, 63))
        raw = tf.reshape(model(flat, training=True), (64, 16, 4))
        rgb, density = tf.sigmoid(raw[..., :3]), tf.nn.relu(raw[..., 3])
        alpha = 1.0 - tf.exp(-density * 0.1)
        weights = alpha * tf.math.cumprod(1.0 - alpha + 1e-10, axis=-1, exclusive=True)
        shown = tf.reduce_sum(weights[..., None] * rgb, axis=-2)
        return tf.reduce_mean((shown - colours) ** 2)

    make = lambda rng: (rng.uniform(-1, 1, (64, 16, 3)), rng.uniform(size=(64, 3)))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))
