"""Layers in a training step: what they hold there, and that they train as plain ones do.

tests/contracts has every public layer of Keras.
"""

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, layers
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import rules
from tf_comptrain.compression.instrumentation import instrumentation


def step(model, x):
    weights = tf.constant(
        np.random.default_rng(1).normal(size=model.compute_output_shape(x.shape)), tf.float32
    )

    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=True)
            loss = tf.reduce_sum(y * weights)
        return y, tape.gradient(loss, [x, *[v.value for v in model.trainable_variables]])

    y, grads = tf.function(compute)(tf.constant(x))
    return y.numpy(), [g.numpy() for g in grads], [v.numpy() for v in model.non_trainable_variables]


def check_tight_bound(build, x):
    """Gradients at a bound of 1e-6 are those of plain Keras."""
    _, plain, _ = step(build(), x)
    model = build()
    ct.compress_model(model, error_bound=1e-6)
    _, ours, _ = step(model, x)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_a_subclass_with_a_call_of_its_own_trains_as_plain():
    class Scaled(layers.Conv2D):
        def call(self, x):
            return 2 * super().call(x)

    keras.utils.set_random_seed(0)
    first = layers.Conv2D(8, 3, activation="relu")
    model = keras.Sequential([keras.Input((9, 9, 5)), first, Scaled(4, 3, name="scaled")])
    x = np.random.default_rng(0).normal(size=(6, 9, 9, 5)).astype("float32")
    _, plain, _ = step(model, x)
    report = ct.compress_model(model, error_bound=1e-5)
    _, ours, _ = step(model, x)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
    assert [row.storage for row in report.rows] == ["compress"]  # what Scaled reads


def test_a_subclass_that_inherits_call_computes_what_it_did():
    class Standardized(layers.Conv2D):
        def convolution_op(self, inputs, kernel):
            return super().convolution_op(inputs, kernel - tf.reduce_mean(kernel))

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((9, 9, 8)), Standardized(8, 3, groups=8, activation="gelu")])
    x = np.random.default_rng(0).normal(size=(2, 9, 9, 8)).astype("float32")
    _, plain, _ = step(model, x)
    ct.compress_model(model, error_bound=1e-5)
    _, ours, _ = step(model, x)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains(policy):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 8)),
            layers.Conv2D(32, 3, activation="relu", dtype=policy),
            layers.BatchNormalization(dtype=policy),
            layers.ReLU(dtype=policy),
            layers.Conv2D(16, 3, activation="gelu", dtype=policy),
            layers.MaxPooling2D(dtype=policy),
            layers.Flatten(dtype=policy),
            layers.Dense(10, dtype="float32"),
        ]
    )
    x = np.random.default_rng(0).normal(size=(4, 8, 8, 8)).astype("float32")
    _, plain, _ = step(model, x)
    ct.compress_model(model)
    _, ours, _ = step(model, x)
    for a, b in zip(ours, plain):
        assert a.dtype == b.dtype
        assert np.linalg.norm((a - b).astype("float64")) <= 0.25 * np.linalg.norm(b.astype("float64")) + 1e-3
    assert all(s.read_state().stream_bytes > 0 for s in instrumentation(model).sites().values())


def attention_model(dropout=0.0, size=24, width=32):
    """A transformer block: attention with a causal mask, layer norms, GELU."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((size, width))
    x = layers.LayerNormalization()(inputs)
    x = layers.MultiHeadAttention(4, 8, dropout=dropout, seed=3)(x, x, use_causal_mask=True)
    x = y = layers.Add()([inputs, x])
    x = layers.LayerNormalization()(x)
    x = layers.Dense(64, activation="gelu")(x)
    outputs = layers.Add()([y, layers.Dense(width)(x)])
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_holds_no_scores(dropout):
    x = np.random.default_rng(0).normal(size=(8, 24, 32)).astype("float32")
    _, plain, plain_state = step(attention_model(dropout), x)
    model = attention_model(dropout)
    report = ct.compress_model(model, error_bound=1e-6)
    _, ours, ours_state = step(model, x)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * max(1.0, np.abs(b).max()))
    for a, b in zip(ours_state, plain_state):
        np.testing.assert_array_equal(a, b)
    rows = [row for row in report.rows if row.note != "made of constants alone"]
    held = [row.storage for row in rows if row.shape == (4, 24, 24)]
    assert held == (["bitmask"] if dropout else [])  # which of them the dropout left


def grouped_attention_in_recompute():
    """Attention with dropout that runs once more, from the random state it had."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((24, 32))
    inner = keras.Input((24, 32))
    attention = layers.GroupQueryAttention(8, 4, 2, dropout=0.3, seed=3)
    block = keras.Model(inner, attention(inner, inner, use_causal_mask=True))
    return keras.Model(inputs, ct.Recompute(block)(inputs))


@pytest.mark.parametrize("make", [lambda: attention_model(0.3), grouped_attention_in_recompute])
def test_attention_draws_one_mask(make):
    x = np.random.default_rng(0).normal(size=(3, 24, 32)).astype("float32")
    y, plain, _ = step(make(), x)
    model = make()
    ct.compress_model(model, error_bound=1e-5)
    ours_y, ours, _ = step(model, x)
    np.testing.assert_allclose(ours_y, y, rtol=1e-4, atol=1e-5)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rate", [0.1, 0.37, 0.999])
def test_dropout_draws_the_numbers_of_keras(dtype, rate):
    x = tf.cast(tf.constant(np.random.default_rng(0).normal(size=(5, 77, 13))), dtype)
    plain = layers.Dropout(rate, seed=7, dtype=dtype)
    model = keras.Sequential([keras.Input((77, 13), dtype=dtype), layers.Dropout(rate, seed=7, dtype=dtype)])
    ct.compress_model(model)
    ours = tf.function(lambda x: model(x, training=True))
    for _ in range(2):
        expected, found = plain(x, training=True), ours(x)
        np.testing.assert_array_equal(tf.cast(found, "float32"), tf.cast(expected, "float32"))


def test_no_gradient_shrinks_on_its_way_through_layer_normalizations():
    """As it would by a percent in each, if the variance were that of what is decoded."""

    def make():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((16, 32))
        x = layers.Dense(32)(inputs)
        for _ in range(8):
            x = layers.LayerNormalization(epsilon=1e-6)(x + layers.Dense(32, activation="gelu")(x))
        return keras.Model(inputs, x)

    plain, ours = make(), make()
    ct.compress_model(ours)
    shares = []
    for seed in range(8):
        x = np.random.default_rng(seed).normal(size=(16, 16, 32)).astype("float32")
        expected, found = (np.array(step(model, x)[1][0]) for model in (plain, ours))
        shares.append(np.vdot(found, expected) / np.vdot(expected, expected))
    assert abs(np.mean(shares) - 1) < 0.02


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("options", [{}, {"scale": False}, {"center": False}, {"axis": [1, 2]}, {"axis": 1}])
def test_layer_normalization_is_that_of_keras(options, policy):
    def make():
        keras.utils.set_random_seed(1)
        made = layers.LayerNormalization(dtype=policy, **options)
        model = keras.Sequential([keras.Input((9, 40)), made, layers.Activation("linear", dtype="float32")])
        made.set_weights([1 + np.arange(w.size).reshape(w.shape) % 5 / 4 for w in made.get_weights()])
        return model

    x = np.random.default_rng(0).normal(2, 3, size=(4, 9, 40)).astype("float32")
    y, plain, _ = step(make(), x)
    model = make()
    ct.compress_model(model, error_bound=1e-5)
    ours_y, ours, _ = step(model, x)
    tolerance = 1e-3 if policy == "float32" else 3e-2
    for a, b in zip([ours_y, *ours], [y, *plain]):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(1.0, np.abs(b).max()))


@pytest.mark.parametrize("layer", [layers.Maximum, layers.Minimum])
@pytest.mark.parametrize("shape", [(9, 9, 5), (1, 9, 1)], ids=["alike", "broadcast"])
def test_the_larger_one_is_held_as_a_bit(layer, shape):
    inputs = [keras.Input((9, 9, 5)), keras.Input(shape), keras.Input((9, 9, 5))]
    trained = layers.DepthwiseConv2D(1, depthwise_initializer="ones")(inputs[0])
    model = keras.Model(inputs, layer()([trained, *inputs[1:]]))
    rng = np.random.default_rng(0)
    x = [tf.constant(rng.integers(-2, 3, (3, *t.shape[1:])), tf.float32) for t in inputs]  # with ties

    def gradients():
        @tf.function
        def compute(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = model(x, training=True)
                loss = tf.reduce_sum(tf.square(y))
            return tape.gradient(loss, x)

        return compute(x)

    plain = gradients()
    report = ct.compress_model(model)
    for a, b in zip(gradients(), plain):
        np.testing.assert_allclose(a, b, atol=0.4)  # 2 y is held, with an error of 0.2 sigma at most
    masks = [row for row in report.rows if row.storage == "bitmask"]
    assert len(masks) == 2 and all(row.predicted_bytes == round(9 * 9 * 5 / 8) for row in masks)


@pytest.mark.parametrize("kind", ["dot", "attention", "attention_dropout", "additive"])
def test_layers_of_several_tensors(kind):
    make = {
        "dot": lambda: layers.Dot(axes=(2, 2)),
        "attention": lambda: layers.Attention(use_scale=True),
        "attention_dropout": lambda: layers.Attention(dropout=0.3, seed=2),
        "additive": lambda: layers.AdditiveAttention(),
    }[kind]

    def build():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((12, 8))
        a, b = (layers.Dense(8)(inputs) for _ in range(2))
        return keras.Model(inputs, make()([a, b]))

    x = np.random.default_rng(0).normal(size=(3, 12, 8)).astype("float32")
    check_tight_bound(build, x)


def test_embeddings_and_masks():
    def build():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((20,), dtype="int32")
        x = layers.Embedding(30, 16, mask_zero=True)(inputs)
        x = layers.Dense(16, activation="tanh")(x)
        x = layers.LayerNormalization()(layers.MultiHeadAttention(2, 8)(x, x))
        return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))

    rng = np.random.default_rng(0)
    tokens, y = rng.integers(0, 30, (16, 20)), rng.integers(0, 4, 16)
    losses = []
    for compress in (False, True):
        model = compiled(build())
        if compress:
            ct.compress_model(model, error_bound=1e-6)
        losses.append(model.fit(tokens, y, epochs=3, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)


@pytest.mark.parametrize("factor", [(9, 9, 8), (1, 1, 8)])
def test_products_hold_their_factors(factor):
    def build():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((9, 9, 8))
        gate = layers.Conv2D(8, 3, padding="same", activation="sigmoid")(inputs)
        if factor == (1, 1, 8):
            gate = layers.GlobalAveragePooling2D(keepdims=True)(gate)
        return keras.Model(inputs, layers.Multiply()([inputs, gate]))

    x = np.random.default_rng(0).normal(size=(3, 9, 9, 8)).astype("float32")
    check_tight_bound(build, x)


class Probabilities(keras.Model):
    """A sigmoid inside, a softmax at the end: in no graph that tells which is which."""

    def __init__(self):
        super().__init__()
        self.gate, self.head = (
            layers.Dense(100, activation="sigmoid"),
            layers.Dense(100, activation="softmax"),
        )

    def call(self, x):
        return self.head(self.gate(x))


def test_losses_find_the_logits_of_subclassed_models():
    results = []
    for compress in (False, True):
        keras.utils.set_random_seed(0)
        model = Probabilities()
        model.compile("sgd", "sparse_categorical_crossentropy")
        model(np.zeros((1, 100)))
        # Probabilities of 0: only logits have the right loss.
        model.head.kernel.assign(model.head.kernel * 300)
        if compress:
            ct.compress_model(model, error_bound=1e-6)
        x = np.random.default_rng(0).normal(size=(16, 100)).astype("float32")
        loss = model.train_on_batch(x, np.arange(16))
        results.append([loss, *model.get_weights()])
    # An error of 1e-6 in what is held passes through differences of the head's weights (up to 104), inputs (up to
    # 4) and a learning rate of 0.01: 4e-6 in the worst case. The first layer's weights move by 0.1.
    for a, b in zip(*results):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=5e-6)


class Mixed(layers.Layer):
    """Two inputs, x + s * x * y."""

    def build(self, shapes):
        self.s = self.add_weight(shape=(), initializer="ones")

    def call(self, x, y):
        return x + self.s * x * y


def test_a_rule_for_a_layer_of_the_user(monkeypatch):
    monkeypatch.setattr(rules.base, "_RULES", dict(rules.base._RULES))

    def build():
        keras.utils.set_random_seed(0)
        a, b = keras.Input((9, 9, 8)), keras.Input((9, 9, 8))
        y = Mixed(name="mixed")(layers.Conv2D(8, 3, padding="same")(a), b)
        return keras.Model([a, b], layers.Conv2D(4, 3)(y))

    x = np.random.default_rng(0).normal(size=(4, 9, 9, 8)).astype("float32")
    target = np.zeros((4, 7, 7, 4), "float32")

    def losses(model):
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model.fit([x, x[::-1]], target, epochs=3, shuffle=False, verbose=0).history["loss"]

    plain = losses(build())

    @ct.register_rule(Mixed)
    class MixedRule(ct.rules.Rule):
        def saves(self, layer):
            return tuple(ct.rules.Save(role, kind="nonlinear") for role in ("x", "y"))

        def call(self, context, x, y):
            sites = [context.sites["x"], context.sites["y"]]
            return ct.rules.from_inputs(context.original, [x, y], sites, context.layer)

    model = build()
    ct.compress_model(model, error_bound=1e-5)
    assert list(instrumentation(model).own_sites()) == ["mixed/x", "mixed/y"]
    np.testing.assert_allclose(losses(model), plain, rtol=1e-4)
    assert all(site.read_state().stream_bytes > 0 for site in instrumentation(model).sites().values())


def test_what_is_no_rule_is_refused():
    with pytest.raises(TypeError, match="keras.layers.Layer"):
        ct.register_rule("Dense")
    with pytest.raises(TypeError, match="rules.Rule"):
        ct.register_rule(Mixed)(lambda x: x)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("storage", ["compress", "fused"])
def test_a_mean_far_from_zero_does_not_spoil_a_batch_normalization(storage, jit):
    """XLA's variance of TensorFlow's operation is E[x^2] - E[x]^2: without a digit, or below zero."""
    rng = np.random.default_rng(0)
    x = rng.normal(3000, size=(64, 12, 8)).astype("float32")
    results = []
    for how in (None, storage):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((12, 8)), layers.BatchNormalization(), layers.Dense(16, "gelu")]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit)
        if how:
            ct.compress_model(model, storage=how)
        losses = [model.train_on_batch(x, np.ones((64, 12, 16), "float32")) for _ in range(3)]
        results.append((losses, model.get_weights()))
    (plain, its), (ours, found) = results
    np.testing.assert_allclose(ours, plain, rtol=2e-3)
    for a, b in zip(found, its):
        np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-2)


def test_a_tensor_that_a_function_returns_of_a_batch_normalization():
    """The fused operation stays for it under XLA: a function's results are what they were."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((12, 8)), layers.BatchNormalization()])
    ct.compress_model(model)

    @tf.function(jit_compile=True, autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            y = model(x, training=True)
            loss = tf.reduce_sum(y * tf.stop_gradient(x))
        return y, tape.gradient(loss, [v.value for v in model.trainable_variables])

    x = tf.constant(np.random.default_rng(0).normal(size=(64, 12, 8)), tf.float32)
    y, (dgamma, dbeta) = step(x)
    np.testing.assert_allclose(np.mean(y, (0, 1)), 0, atol=1e-5)
    np.testing.assert_allclose(dbeta, np.sum(x, (0, 1)), rtol=1e-4)
    np.testing.assert_allclose(dgamma, np.sum(x * y, (0, 1)), rtol=2e-2)


@pytest.mark.parametrize("jit", [False, True])
def test_second_gradients_of_a_layer_normalization(jit):
    """As forward mode takes them, and the gradient of a gradient that no tape has recorded."""
    x = tf.constant(np.random.default_rng(0).normal(1, 2, size=(4, 9, 40)), tf.float32)

    def gradients(compress):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((9, 40)), layers.LayerNormalization(), layers.Dense(4)])
        if compress:
            ct.compress_model(model, error_bound=1e-6)

        @tf.function(jit_compile=jit, autograph=False)
        def step(x):
            with tf.GradientTape() as tape:
                with tf.autodiff.ForwardAccumulator(x, tf.cos(x)) as forward:
                    y = model(x, training=True)
                loss = tf.reduce_mean(tf.square(y)) + tf.reduce_mean(tf.square(forward.jvp(y)))
            return tape.gradient(loss, [v.value for v in model.trainable_variables])

        return step(x)

    for ours, its in zip(gradients(True), gradients(False)):
        assert np.linalg.norm(ours - its) <= (0.02 if jit else 1e-4) * np.linalg.norm(its)


def by_moments(x):
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, None, None, 1e-5)


NORMALIZATIONS = {
    "layer": layers.LayerNormalization,
    "rms": layers.RMSNormalization,
    "unit": layers.UnitNormalization,
    "group": lambda: layers.GroupNormalization(8),
    "power": lambda: layers.Lambda(lambda x: x * tf.math.rsqrt(tf.reduce_mean(x**2, -1, True) + 1e-6)),
    "moments": lambda: layers.Lambda(by_moments),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", NORMALIZATIONS)
def test_rows_that_are_much_shorter_than_others_have_bounded_gradients(name, jit):
    """The error of a channel's scale, times 1 / the length of such a row, is squared in the gradient."""
    x = np.random.default_rng(0).normal(size=(16, 16, 64)).astype("float32")
    x[:, 0] *= 1000  # as a token that draws attention
    x[0] *= 1000
    found = []
    for compressed in (False, True):
        keras.utils.set_random_seed(1)
        norm = NORMALIZATIONS[name]()
        block = [layers.Dense(64), norm, layers.Dense(32, "gelu"), layers.Dense(8)]
        model = keras.Sequential([keras.Input((16, 64)), *block])
        if compressed:
            ct.compress_model(model)
        step_of = tf.function(lambda x: gradients_of(model, x), jit_compile=jit, autograph=False)  # noqa: B023
        found.append(np.concatenate([np.ravel(g) for g in step_of(tf.constant(x))]))
    plain, ours = found
    assert np.linalg.norm(ours) <= 1.2 * np.linalg.norm(plain)
    assert np.linalg.norm(ours - plain) <= 0.7 * np.linalg.norm(plain)


def gradients_of(model, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True)))
    return tape.gradient(loss, [v.value for v in model.trainable_variables])
