"""One contract for every layer rule: with a tight bound, the training step of plain Keras."""

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, layers
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import rules
from tf_comptrain.model import instrumentation

# name: (layers, input shape of one sample, tensors held compressed)
CASES = {
    "conv2d": ([lambda: layers.Conv2D(8, 3)], (9, 9, 5), 1),
    "conv2d_strided_same": ([lambda: layers.Conv2D(8, 3, strides=2, padding="same")], (9, 9, 5), 1),
    "conv2d_dilated_grouped": ([lambda: layers.Conv2D(8, 3, dilation_rate=2, groups=1)], (9, 9, 5), 1),
    "conv2d_grouped": ([lambda: layers.Conv2D(10, 3, groups=5, strides=2)], (9, 9, 5), 1),
    "conv2d_relu": ([lambda: layers.Conv2D(8, 3, activation="relu")], (9, 9, 5), 1),
    "conv2d_gelu": ([lambda: layers.Conv2D(8, 3, activation="gelu")], (9, 9, 5), 2),
    "tanh_chain": ([lambda: layers.Conv2D(8, 3, activation="tanh"), lambda: layers.Conv2D(8, 3)], (9, 9, 5), 2),
    "conv1d_causal": ([lambda: layers.Conv1D(8, 3, padding="causal")], (30, 5), 1),
    "conv3d": ([lambda: layers.Conv3D(4, 3)], (6, 6, 6, 3), 1),
    "conv2d_transpose": ([lambda: layers.Conv2DTranspose(8, 3, strides=2)], (9, 9, 5), 1),
    "depthwise": ([lambda: layers.DepthwiseConv2D(3, depth_multiplier=2)], (9, 9, 5), 1),
    "separable": ([lambda: layers.SeparableConv2D(8, 3, activation="relu")], (9, 9, 5), 1),
    "dense": ([lambda: layers.Dense(7)], (100,), 1),
    "dense_sigmoid": ([lambda: layers.Dense(70, activation="sigmoid"), lambda: layers.Dense(7)], (100,), 2),
    "softmax_inside": ([lambda: layers.Dense(70, activation="softmax"), lambda: layers.Dense(7)], (100,), 2),
    "dense_rank3": ([lambda: layers.Dense(7)], (10, 20), 1),
    "einsum_dense": ([lambda: layers.EinsumDense("abc,cd->abd", output_shape=(10, 7))], (10, 20), 1),
    "batch_norm": ([lambda: layers.BatchNormalization()], (9, 9, 5), 1),
    "batch_norm_rank2": ([lambda: layers.BatchNormalization(scale=False)], (100,), 1),
    "batch_norm_rank3": ([lambda: layers.BatchNormalization(center=False)], (20, 7), 1),
    "batch_norm_rank5": ([lambda: layers.BatchNormalization()], (4, 4, 4, 5), 1),
    "conv_bn_relu_conv": (
        [
            lambda: layers.Conv2D(32, 3, use_bias=False),
            lambda: layers.BatchNormalization(),
            lambda: layers.ReLU(),
            lambda: layers.Conv2D(8, 3),
        ],
        (9, 9, 5),
        3,
    ),
    "relu": ([lambda: layers.ReLU()], (9, 9, 5), 0),
    "relu6": ([lambda: layers.ReLU(max_value=6.0)], (9, 9, 5), 0),
    "relu_threshold": ([lambda: layers.ReLU(threshold=0.5)], (9, 9, 5), 0),
    "leaky_relu": ([lambda: layers.LeakyReLU(negative_slope=0.1)], (9, 9, 5), 0),
    "activation_relu6": ([lambda: layers.Activation("relu6")], (9, 9, 5), 0),
    "activation_leaky": ([lambda: layers.Activation("leaky_relu")], (9, 9, 5), 0),
    "activation_tanh": ([lambda: layers.Activation("tanh")], (9, 9, 5), 1),
    "activation_swish": ([lambda: layers.Activation("swish")], (9, 9, 5), 1),
    "elu": ([lambda: layers.ELU()], (9, 9, 5), 1),
    "prelu": ([lambda: layers.PReLU(alpha_initializer="ones")], (9, 9, 5), 1),
    "layer_norm": ([lambda: layers.LayerNormalization()], (9, 70), 1),
    "group_norm": ([lambda: layers.GroupNormalization(4)], (9, 9, 8), 1),
    "rms_norm": ([lambda: layers.RMSNormalization()], (9, 70), 1),
    "max_pool": ([lambda: layers.MaxPooling2D(3, strides=2, padding="same")], (9, 9, 5), 0),
    "max_pool_1d": ([lambda: layers.MaxPooling1D(2)], (9, 5), 0),
    "max_pool_3d": ([lambda: layers.MaxPooling3D(2)], (6, 6, 6, 3), 0),
    "adaptive_max": ([lambda: layers.AdaptiveMaxPooling2D(3)], (9, 9, 5), 0),
    "global_max": ([lambda: layers.GlobalMaxPooling2D()], (9, 9, 5), 0),
    "global_max_keepdims": ([lambda: layers.GlobalMaxPooling1D(keepdims=True)], (9, 5), 0),
    "softmax_layer": ([lambda: layers.Softmax(), lambda: layers.Dense(7)], (9, 9, 7), 2),
    "resizing": ([lambda: layers.Resizing(7, 7), lambda: layers.Conv2D(4, 3)], (9, 9, 5), 1),
    "average_pool": ([lambda: layers.AveragePooling2D(2)], (9, 9, 5), 0),
    "global_average": ([lambda: layers.GlobalAveragePooling2D()], (9, 9, 5), 0),
    "padding": ([lambda: layers.ZeroPadding2D(1), lambda: layers.Conv2D(8, 3)], (9, 9, 5), 1),
    "reshape": ([lambda: layers.Reshape((27, 15)), lambda: layers.Permute((2, 1))], (9, 9, 5), 0),
    "dropout": ([lambda: layers.Dropout(0.4, seed=7)], (9, 9, 5), 0),
    "spatial_dropout": ([lambda: layers.SpatialDropout2D(0.4, seed=7)], (9, 9, 5), 0),
    "gaussian_noise": ([lambda: layers.GaussianNoise(0.4, seed=7)], (9, 9, 5), 0),
    "gaussian_dropout": ([lambda: layers.GaussianDropout(0.4, seed=7)], (9, 9, 5), 0),
    "alpha_dropout": ([lambda: layers.AlphaDropout(0.4, seed=7)], (9, 9, 5), 0),
    "adaptive_average": ([lambda: layers.AdaptiveAveragePooling2D(4)], (9, 9, 5), 0),
    "spectral_norm": ([lambda: layers.SpectralNormalization(layers.Conv2D(8, 3))], (9, 9, 5), 1),
    "upsampling": ([lambda: layers.UpSampling2D(2)], (5, 5, 3), 0),
}  # fmt: skip


def build(case):
    makers, shape, _ = CASES[case]
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input(shape), *(make() for make in makers)])
    return model, np.random.default_rng(0).normal(size=(6, *shape)).astype("float32")


def step(model, x, graph):
    weights = tf.constant(
        np.random.default_rng(1).normal(size=model.compute_output_shape(x.shape)), tf.float32
    )

    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=True)
            loss = tf.reduce_sum(y * weights)
        return y, tape.gradient(loss, [x, *[v.value for v in model.trainable_variables]])

    y, grads = (tf.function(compute) if graph else compute)(tf.constant(x))
    return y.numpy(), [g.numpy() for g in grads], [v.numpy() for v in model.non_trainable_variables]


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("case", CASES)
def test_a_tight_bound_gives_plain_training(case, graph):
    model, x = build(case)
    y, grads, state = step(model, x, graph)
    model, x = build(case)
    report = ct.compress_model(model, error_bound=1e-5)
    assert not report.skipped
    ours_y, ours_grads, ours_state = step(model, x, graph)
    np.testing.assert_allclose(ours_y, y, rtol=1e-4, atol=1e-5)
    for ours, plain in zip(ours_grads, grads):
        np.testing.assert_allclose(ours, plain, rtol=1e-3, atol=1e-3 * max(1.0, np.abs(plain).max()))
    for ours, plain in zip(ours_state, state):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-6)
    used = [site.read_state().stream_bytes > 0 for site in instrumentation(model).sites().values()]
    assert sum(used) == CASES[case][2]


EXACT = (
    "max_pool",
    "relu",
    "dropout",
    "alpha_dropout",
    "gaussian_dropout",
    "leaky_relu",
    "relu6",
    "max_pool_1d",
)


@pytest.mark.parametrize("case", EXACT)
def test_exact_storages_give_exact_gradients(case):
    model, x = build(case)
    _, grads, _ = step(model, x, graph=True)
    model, x = build(case)
    ct.compress_model(model)
    _, ours, _ = step(model, x, graph=True)
    for a, b in zip(ours, grads):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_a_subclass_with_a_call_of_its_own_is_kept():
    class Scaled(layers.Conv2D):
        def call(self, x):
            return 2 * super().call(x)

    model = keras.Sequential([keras.Input((9, 9, 5)), Scaled(4, 3, name="scaled")])
    (row,) = ct.compress_model(model).skipped
    assert row.layer == "scaled" and "Scaled" in row.note


def test_a_subclass_that_inherits_call_has_its_rule():
    class Standardized(layers.Conv2D):
        def convolution_op(self, inputs, kernel):
            return super().convolution_op(inputs, kernel - tf.reduce_mean(kernel))

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((9, 9, 8)), Standardized(4, 3)])
    x = np.random.default_rng(0).normal(size=(2, 9, 9, 8)).astype("float32")
    _, plain, _ = step(model, x, graph=True)
    assert not ct.compress_model(model, error_bound=1e-5).skipped
    _, ours, _ = step(model, x, graph=True)
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
    _, plain, _ = step(model, x, graph=True)
    ct.compress_model(model)
    _, ours, _ = step(model, x, graph=True)
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
@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_attention_holds_no_probabilities(dropout, graph):
    x = np.random.default_rng(0).normal(size=(3, 24, 32)).astype("float32")
    _, plain, plain_state = step(attention_model(dropout), x, graph)
    model = attention_model(dropout)
    assert not ct.compress_model(model, error_bound=1e-5).skipped
    _, ours, ours_state = step(model, x, graph)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * max(1.0, np.abs(b).max()))
    for a, b in zip(ours_state, plain_state):
        np.testing.assert_array_equal(a, b)


def grouped_attention_in_recompute():
    """Attention with dropout that runs once more, from the random state it had."""
    keras.utils.set_random_seed(5)
    inputs = keras.Input((24, 32))
    inner = keras.Input((24, 32))
    attention = layers.GroupQueryAttention(8, 4, 2, dropout=0.3, seed=3)
    block = keras.Model(inner, attention(inner, inner, use_causal_mask=True))
    return keras.Model(inputs, ct.Recompute(block)(inputs))


@pytest.mark.parametrize("make", [lambda: attention_model(0.3), grouped_attention_in_recompute])
def test_the_mask_of_attention_is_drawn_once(make):
    x = np.random.default_rng(0).normal(size=(3, 24, 32)).astype("float32")
    y, plain, _ = step(make(), x, graph=True)
    model = make()
    ct.compress_model(model, error_bound=1e-5)
    ours_y, ours, _ = step(model, x, graph=True)
    np.testing.assert_allclose(ours_y, y, rtol=1e-4, atol=1e-5)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * max(1.0, np.abs(b).max()))

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    graph = gradient.get_concrete_function(tf.constant(x)).graph
    drawn = [op for op in graph.get_operations() if op.type == "Comptrain>Dropout"]
    scores = {tuple(op.inputs[0].shape)[-2:] for op in drawn}
    assert len(drawn) == 1 and scores == {(24, 24)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rate", [0.1, 0.37, 0.999])
def test_dropout_draws_the_numbers_of_keras(dtype, rate):
    x = tf.cast(tf.constant(np.random.default_rng(0).normal(size=(5, 77, 13))), dtype)
    plain = layers.Dropout(rate, seed=7, dtype=dtype)
    model = keras.Sequential([keras.Input((77, 13), dtype=dtype), layers.Dropout(rate, seed=7, dtype=dtype)])
    ct.compress_model(model)
    for _ in range(2):
        expected, found = plain(x, training=True), model(x, training=True)
        np.testing.assert_array_equal(tf.cast(found, "float32"), tf.cast(expected, "float32"))


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
    y, plain, _ = step(make(), x, graph=True)
    model = make()
    ct.compress_model(model, error_bound=1e-5)
    ours_y, ours, _ = step(model, x, graph=True)
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
    (row,) = [row for row in ct.compress_model(model).rows if row.role == "mask"]
    assert row.predicted_bytes == round(9 * 9 * 5 * 2 / 8)
    for a, b in zip(gradients(), plain):
        np.testing.assert_array_equal(a, b)


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
    _, plain, _ = step(build(), x, graph=True)
    model = build()
    assert not ct.compress_model(model, error_bound=1e-5).skipped
    _, ours, _ = step(model, x, graph=True)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


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
            assert not ct.compress_model(model, error_bound=1e-5).skipped
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
    _, plain, _ = step(build(), x, graph=True)
    model = build()
    assert not ct.compress_model(model, error_bound=1e-5).skipped
    _, ours, _ = step(model, x, graph=True)
    for a, b in zip(ours, plain):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_the_last_softmax_stays_plain_for_the_loss():
    model = keras.Sequential([keras.Input((100,)), layers.Dense(100, activation="softmax", name="head")])
    roles = {row.role for row in ct.compress_model(model).rows}
    assert roles == {"input"}


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
            report = ct.compress_model(model, error_bound=1e-6)
            assert [row.layer_class for row in report.rows if row.role == "output"] == ["Dense", "Dense"]
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
    assert "no rule for Mixed" in ct.compress_model(build()).skipped[0].note

    @ct.register_rule(Mixed)
    class MixedRule(ct.rules.Rule):
        def saves(self, layer, storage):
            return tuple(
                ct.rules.Save(role, "input", kind="nonlinear", number=k) for k, role in enumerate(("x", "y"))
            )

        def call(self, context, x, y):
            sites = [context.sites["x"], context.sites["y"]]
            return ct.rules.from_inputs(context.original, [x, y], sites, context.layer)

    model = build()
    report = ct.compress_model(model, error_bound=1e-5)
    assert not report.skipped and [row.role for row in report.rows if row.layer == "mixed"] == ["x", "y"]
    np.testing.assert_allclose(losses(model), plain, rtol=1e-4)
    assert all(site.read_state().stream_bytes > 0 for site in instrumentation(model).sites().values())


def test_what_is_no_rule_is_refused():
    with pytest.raises(TypeError, match="keras.layers.Layer"):
        ct.register_rule("Dense")
    with pytest.raises(TypeError, match="rules.Rule"):
        ct.register_rule(Mixed)(lambda x: x)
