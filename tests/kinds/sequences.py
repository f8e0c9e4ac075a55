"""Text, sound and other sequences."""

import tensorflow as tf
from kind import FromKeras, Kind, batches, cross_entropy, layers, sequential, supervised
from tensorflow import keras

VOCABULARY = 50


def _tokens(rng, *shape):
    return rng.integers(1, VOCABULARY, shape)


def ctc():
    """Convolution, a recurrent layer, and TensorFlow's CTC loss."""
    model = sequential(
        layers.Conv1D(64, 5, padding="same", activation="relu"),
        layers.Bidirectional(layers.GRU(32, return_sequences=True)),
        layers.Dense(VOCABULARY),
        shape=(64, 20),
    )

    def loss_of(sound, labels):
        logits = model(sound, training=True)
        losses = tf.nn.ctc_loss(
            labels, logits, tf.fill([8], 10), tf.fill([8], 64), logits_time_major=False, blank_index=0
        )
        return tf.reduce_mean(losses)

    make = lambda rng: (rng.normal(size=(8, 64, 20)), _tokens(rng, 8, 10))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))


def seq2seq():
    """Encoder and decoder of recurrent layers with attention between them, masked."""
    source, target = keras.Input((24,), dtype="int32"), keras.Input((24,), dtype="int32")
    encoded, *state = layers.LSTM(64, return_sequences=True, return_state=True)(
        layers.Embedding(VOCABULARY, 64, mask_zero=True)(source)
    )
    decoded = layers.LSTM(64, return_sequences=True)(
        layers.Embedding(VOCABULARY, 64)(target), initial_state=state
    )
    context = layers.Attention()([decoded, encoded])
    x = layers.Dense(64, activation="tanh")(layers.Concatenate()([decoded, context]))
    model = keras.Model([source, target], layers.Dense(VOCABULARY)(x))

    def loss_of(source, target):
        logits = model([source, target[:, :-1]], training=True)
        return cross_entropy(target[:, 1:], logits)

    make = lambda rng: (_tokens(rng, 16, 24), _tokens(rng, 16, 25))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))


def masked_language_model():
    """Keras' attention layers, dropout, and a loss where tokens were masked."""
    tokens = keras.Input((32,), dtype="int32")
    x = layers.Embedding(VOCABULARY, 64)(tokens)
    x = layers.LayerNormalization()(x)
    for k in range(2):
        a = layers.MultiHeadAttention(4, 16, dropout=0.1, seed=k)(x, x)
        x = layers.LayerNormalization()(x + a)
        f = layers.Dense(64)(layers.Dense(256, activation="gelu")(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1, seed=10 + k)(f))
    model = keras.Model(tokens, layers.Dense(VOCABULARY)(x))

    def loss_of(tokens, labels, masked):
        logits = model(tokens, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return tf.math.divide_no_nan(tf.reduce_sum(losses * masked), tf.reduce_sum(masked))

    make = lambda rng: (_tokens(rng, 16, 32), _tokens(rng, 16, 32), 1.0 * (rng.uniform(size=(16, 32)) < 0.3))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))


def rnn_with_scan():
    """A recurrent language model as a tf.scan over time."""

    class Recurrent(keras.Model):
        def build(self, shape):
            self.table = self.add_weight(shape=(VOCABULARY, 64), name="table")
            self.inward = self.add_weight(shape=(64, 64), name="inward")
            self.onward = self.add_weight(shape=(64, 64), name="onward", initializer="orthogonal")
            self.head = self.add_weight(shape=(64, VOCABULARY), name="head")

        def call(self, tokens):
            x = tf.transpose(tf.gather(self.table, tokens), (1, 0, 2))
            x = tf.einsum("tbi,ij->tbj", x, self.inward)
            onward = tf.convert_to_tensor(self.onward)
            states = tf.scan(lambda h, now: tf.tanh(now + tf.matmul(h, onward)), x, tf.zeros_like(x[0]))
            return tf.einsum("tbi,iv->btv", states, self.head)

    model = Recurrent()
    model.build((None, 24))
    loss_of = lambda tokens: cross_entropy(tokens[:, 1:], model(tokens[:, :-1], training=True))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(lambda rng: (_tokens(rng, 32, 25),)))


def dilated_tcn():
    """Causal, dilated convolutions with gates and skips, in `fit`."""
    inputs = keras.Input((128, 8))
    x, skips = layers.Conv1D(32, 1)(inputs), []
    for dilation in (1, 2, 4, 8):
        gate = layers.Conv1D(32, 2, padding="causal", dilation_rate=dilation, activation="sigmoid")(x)
        value = layers.Conv1D(32, 2, padding="causal", dilation_rate=dilation, activation="tanh")(x)
        z = layers.Conv1D(32, 1)(layers.Multiply()([gate, value]))
        skips.append(z)
        x = layers.Add()([x, z])
    model = keras.Model(inputs, layers.Conv1D(1, 1)(layers.ReLU()(layers.Add()(skips))))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    make = lambda rng: (rng.normal(size=(16, 128, 8)), rng.normal(size=(16, 128, 1)))  # noqa: E731
    return Kind((model,), FromKeras(model).run, batches(make))


def recommender():
    """Embeddings of users and items, biases, a dot product, and weights of an L2 penalty."""

    class Factors(keras.Model):
        def __init__(self):
            super().__init__()
            regular = keras.regularizers.L2(1e-5)
            self.users = layers.Embedding(500, 64, embeddings_regularizer=regular)
            self.items = layers.Embedding(800, 64, embeddings_regularizer=regular)
            self.user_bias, self.item_bias = layers.Embedding(500, 1), layers.Embedding(800, 1)
            self.deep = sequential(layers.Dense(64, activation="relu"), layers.Dense(1), shape=(128,))

        def call(self, pairs):
            user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
            dot = tf.reduce_sum(user * item, 1, keepdims=True)
            deep = self.deep(tf.concat([user, item], 1))
            return tf.sigmoid(dot + deep + self.user_bias(pairs[:, 0]) + self.item_bias(pairs[:, 1]))

    model = Factors()
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
    model(tf.zeros((2, 2), tf.int32))
    make = lambda rng: (rng.integers(0, 500, (512, 2)), 1.0 * rng.integers(0, 2, (512, 1)))  # noqa: E731
    return Kind((model,), FromKeras(model).run, batches(make))


def mixture_of_experts():
    """The two best of four experts for each token, through tf.where; a loss that balances them."""

    class Experts(keras.Model):
        def __init__(self):
            super().__init__()
            self.route = layers.Dense(4)
            self.experts = [
                sequential(layers.Dense(128, activation="gelu"), layers.Dense(64), shape=(64,))
                for _ in range(4)
            ]
            self.head = layers.Dense(10)

        def call(self, x):
            gates = tf.nn.softmax(self.route(x))
            best, _ = tf.math.top_k(gates, 2)
            chosen = tf.where(gates >= best[:, 1:], gates, 0.0)
            chosen /= tf.reduce_sum(chosen, 1, keepdims=True)
            outputs = tf.stack([expert(x) for expert in self.experts], 1)
            self.add_loss(0.01 * 4.0 * tf.reduce_sum(tf.reduce_mean(gates, 0) ** 2))
            return self.head(x + tf.einsum("be,bew->bw", chosen, outputs))

    model = Experts()
    model(tf.zeros((2, 64)))

    def loss_of(x, y):
        loss = cross_entropy(y, model(x, training=True))
        return loss + tf.add_n(model.losses)

    make = lambda rng: (rng.normal(size=(256, 64)), rng.integers(0, 10, 256))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))


def attention_pooling():
    """A query that is learned, over a bag of instances, gated."""

    class Pooling(keras.Model):
        def __init__(self):
            super().__init__()
            self.embed = layers.Dense(64, activation="relu")
            self.value, self.gate = (
                layers.Dense(64, activation="tanh"),
                layers.Dense(64, activation="sigmoid"),
            )
            self.score, self.head = layers.Dense(1), layers.Dense(2)

        def call(self, bags):
            x = self.embed(bags)
            scores = tf.nn.softmax(self.score(self.value(x) * self.gate(x)), axis=1)
            return self.head(tf.reduce_sum(scores * x, 1))

    model = Pooling()
    model(tf.zeros((2, 48, 32)))
    loss_of = lambda x, y: cross_entropy(y, model(x, training=True))  # noqa: E731
    make = lambda rng: (rng.normal(size=(16, 48, 32)), rng.integers(0, 2, 16))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(make))


def gpt_with_rotary_positions():
    """RMS norms, rotary positions, a causal mask and a gated feed-forward part in raw operations."""
    width, heads, length = 64, 4, 32

    class Decoder(keras.Model):
        def build(self, shape):
            def weight(name, *size):
                return self.add_weight(shape=size, name=name)

            self.table = weight("table", VOCABULARY, width)
            self.qkv, self.out = weight("qkv", width, 3 * width), weight("out", width, width)
            self.up, self.gate = weight("up", width, 2 * width), weight("gate", width, 2 * width)
            self.down = weight("down", 2 * width, width)

        def call(self, tokens):
            x = tf.gather(self.table, tokens)
            qkv = tf.reshape(tf.matmul(rms(x), self.qkv), (-1, length, 3, heads, width // heads))
            q, k, v = tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))
            scores = tf.einsum("bhqd,bhkd->bhqk", rotated(q), rotated(k)) / 4.0
            seen = tf.linalg.band_part(tf.ones((length, length)), -1, 0)
            weights = tf.nn.softmax(tf.where(seen > 0.0, scores, -1e9))
            mixed = tf.transpose(tf.einsum("bhqk,bhkd->bhqd", weights, v), (0, 2, 1, 3))
            x += tf.matmul(tf.reshape(mixed, (-1, length, width)), self.out)
            y = rms(x)
            x += tf.matmul(tf.nn.silu(tf.matmul(y, self.gate)) * tf.matmul(y, self.up), self.down)
            return tf.matmul(rms(x), self.table, transpose_b=True)

    def rms(x):
        return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), -1, keepdims=True) + 1e-6)

    def rotated(x):
        half = width // heads // 2
        angles = tf.range(length, dtype=tf.float32)[:, None] / 10000.0 ** (
            tf.range(half, dtype=tf.float32) / half
        )
        a, b = tf.split(x, 2, axis=-1)
        return tf.concat(
            [a * tf.cos(angles) - b * tf.sin(angles), b * tf.cos(angles) + a * tf.sin(angles)], -1
        )

    model = Decoder()
    model.build((None, length))
    loss_of = lambda tokens: cross_entropy(tokens[:, 1:], model(tokens[:, :-1], training=True))  # noqa: E731
    return Kind((model,), supervised([model], loss_of), batches(lambda rng: (_tokens(rng, 16, length + 1),)))
