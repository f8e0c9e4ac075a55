"""A head whose result is wide runs by tiles of rows: loss and gradients are the same, nothing wide is whole."""

import numpy as np
import pytest
import tensorflow as tf
from steps import Weights
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.graph.tiles import limits
from tf_comptrain.graph.tiles.picks import drops_last

WIDTH, WORDS = 16, 512
SHAPES = [[WIDTH, WIDTH], [WIDTH, WORDS], [WORDS]]
RNG = np.random.default_rng(0)

sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(limits, "LEAST_BYTES", 1 << 16)
    monkeypatch.setattr(limits, "TILE_BYTES", 1 << 16)


def dense(h, kernel, bias):
    return tf.tensordot(h, kernel, 1) + bias


def flat(h, kernel, bias):
    rows = tf.reshape(h, [-1, WIDTH])
    return tf.reshape(tf.nn.bias_add(tf.matmul(rows, kernel), bias), [-1, h.shape[1], WORDS])


def tied(h, kernel, bias):
    return keras.ops.matmul(h, tf.transpose(tf.reshape(kernel, [WORDS, WIDTH])))


def capped(h, kernel, bias):
    return 5.0 * tf.tanh(dense(h, kernel, bias) / 5.0)


def half(h, kernel, bias):
    made = dense(*(tf.cast(part, tf.bfloat16) for part in (h, kernel, bias)))
    return tf.cast(made, tf.float32)


def one_hot(y):
    return tf.one_hot(tf.cast(y, tf.int32), WORDS)


def z_loss(y, z):
    log_sum = tf.reduce_logsumexp(z, -1)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, z) + 1e-2 * log_sum**2)


def focal(y, z):
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, z)
    return tf.reduce_mean((1.0 - tf.exp(-loss)) ** 2 * loss)


def by_hand(y, z):
    z = z - tf.stop_gradient(tf.reduce_max(z, -1, keepdims=True))
    own = tf.reduce_sum(one_hot(y) * z, -1)
    return tf.reduce_mean(tf.math.log(tf.reduce_sum(tf.exp(z), -1)) - own)


def weighted(y, z):
    weights = 0.5 + tf.cast(y % 3 > 0, tf.float32)
    loss = tf.nn.sparse_softmax_cross_entropy_with_logits(y, z)
    return tf.reduce_sum(loss * weights) / tf.reduce_sum(weights)


def with_squares(y, z):
    """The gradient of a sum over all rows is made of a scalar: rows that are not there would have one as well."""
    return sparse(y, z) + 1e-3 * tf.reduce_sum(tf.square(z))


def gathered(y, z):
    return -tf.reduce_mean(tf.gather(tf.nn.log_softmax(z), y, axis=-1, batch_dims=2))


def gathered_logits(y, z):
    own = tf.gather(z, y[..., None], batch_dims=2)
    return tf.reduce_mean(tf.reduce_logsumexp(z, -1) - own[..., 0])


def taken_along(y, z):
    own = keras.ops.take_along_axis(keras.ops.log_softmax(z), y[..., None], axis=-1)
    return -tf.reduce_mean(own)


def gathered_flat(y, z):
    """Twice: the labels, and the words after these."""
    logs, y = tf.nn.log_softmax(tf.reshape(z, [-1, WORDS])), tf.reshape(y, [-1])
    own, next_word = (tf.gather(logs, (y + more) % WORDS, batch_dims=1) for more in (0, 1))
    return -tf.reduce_mean(own + 0.1 * next_word)


HEADS = {"dense": dense, "flat": flat, "tied": tied, "capped": capped, "bfloat16": half}
LOSSES = {
    "sparse": sparse,
    "sparse_of_softmax": lambda y, z: keras.losses.SparseCategoricalCrossentropy()(y, tf.nn.softmax(z)),
    "dense": lambda y, z: keras.losses.CategoricalCrossentropy(from_logits=True)(one_hot(y), z),
    "smoothed": lambda y, z: keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)(
        one_hot(y), z
    ),
    "binary": lambda y, z: keras.losses.BinaryCrossentropy(from_logits=True)(one_hot(y), z),
    "z_loss": z_loss,
    "focal": focal,
    "by_hand": by_hand,
    "log_softmax": lambda y, z: -tf.reduce_mean(tf.reduce_sum(tf.nn.log_softmax(z) * one_hot(y), -1)),
    "weighted": weighted,
    "gathered": gathered,
    "gathered_logits": gathered_logits,
    "taken_along": taken_along,
    "gathered_flat": gathered_flat,
    "with_squares": with_squares,
    "scaled": lambda y, z: 1024.0 * sparse(y, z),
}
CASES = [*((head, "sparse") for head in HEADS), *(("dense", loss) for loss in list(LOSSES)[1:])]


def data(samples=8, steps=32):
    x = tf.constant(RNG.normal(size=(samples, steps, WIDTH)), tf.float32)
    return x, tf.constant(RNG.integers(0, WORDS, (samples, steps)))


def step_of(model, batch, head, loss, metric=None, jit=False, dynamic=True):
    unknown = {"lengths": 2, True: 1, False: 0}[dynamic]
    signature = [
        tf.TensorSpec([None] * unknown + part.shape[unknown:].as_list(), part.dtype) for part in batch
    ]

    @tf.function(autograph=False, jit_compile=jit, input_signature=signature)
    def step(x, y):
        inner, kernel, bias = (part.value for part in model.parts)
        with tf.GradientTape() as tape:
            z = head(tf.tanh(tf.tensordot(x, inner, 1)), kernel, bias)
            value = loss(y, z)
        gradients = tape.gradient(value, [inner, kernel, bias])
        return value, gradients, () if metric is None else metric(y, z)

    return step


def run(head, loss, batch, metric=None, jit=False, dynamic=True, eager=True, **how):
    """What a step returns, plain and by tiles, and the graph of the second.

    Plain runs eagerly, which takes less time than a trace, unless `eager` is False; XLA rounds in other places.
    """
    plain_step = step_of(Weights(*SHAPES), batch, head, loss, metric, jit, dynamic)
    plain = (plain_step.python_function if eager and not jit else plain_step)(*batch)
    model = Weights(*SHAPES)
    ct.compress_model(model, **{"codec": "plane" if jit else "zvc", **how})
    step = step_of(model, batch, head, loss, metric, jit, dynamic)
    held = instrumentation(model).held
    return plain, step(*batch), step.get_concrete_function(), () if held is None else held.crossings


def wide_tensors(function):
    """What a run makes that has the words of several rows."""
    found, waiting, seen = [], [t.op for t in function.graph.outputs], set()
    while waiting:
        op = waiting.pop()
        if op.name not in seen:
            seen.add(op.name)
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
            made = op.outputs if op.type not in ("Identity", "Cast") else ()  # of the kernel's gradient
            found += [t for t in made if t.shape.rank and t.shape[-1] == WORDS and has_rows(t)]
    return found


def has_rows(tensor):
    before = [size for size in tensor.shape[:-1] if size != 1]
    return bool(before) and before != [WIDTH]


def assert_same(plain, tiled, tolerance=1e-5, of_loss=1e-6, of_terms=0.0):
    """`of_terms`: the loss's error where it is a sum of terms that cancel, as large as they are."""
    np.testing.assert_allclose(tiled[0], plain[0], rtol=of_loss, atol=of_terms)
    for ours, its in zip(tiled[1], plain[1]):
        if its is not None:
            assert np.linalg.norm(ours - its) <= tolerance * np.linalg.norm(its)


@pytest.mark.long("dense-smoothed", "dense-binary", "dense-scaled")
@pytest.mark.parametrize("head, loss", CASES)
def test_loss_and_gradients_are_plains(head, loss):
    plain, tiled, function, crossings = run(HEADS[head], LOSSES[loss], data())
    assert_same(plain, tiled, 1e-2 if head == "bfloat16" else 1e-5)
    assert [c.storage for c in crossings if c.shape[-1:] == (WORDS,)] == ["tile"]
    assert wide_tensors(function) == []


def several(y, z):
    """Three values of each row, which may be the same one: their gradient is scattered, and read by tiles."""
    places = tf.stack([y, (y + 1) % WORDS, y], -1)
    return -tf.reduce_mean(tf.gather(tf.nn.log_softmax(z), places, batch_dims=2))


def preferred(y, z):
    """Of two halves of a batch that which is preferred."""
    own = tf.reduce_sum(tf.gather(tf.nn.log_softmax(z), y, batch_dims=2), -1)
    chosen, other = tf.split(own, 2)
    return -tf.reduce_mean(tf.math.log_sigmoid(0.1 * (chosen - other)))


ROW_LOSSES = tf.nn.sparse_softmax_cross_entropy_with_logits
SLICED = {
    "next_words": lambda y, z: tf.reduce_mean(ROW_LOSSES(y[:, 1:], z[:, :-1])),
    "next_words_flat": lambda y, z: tf.reduce_mean(
        ROW_LOSSES(tf.reshape(y[:, 1:], [-1]), tf.reshape(z[..., :-1, :], [-1, WORDS]))
    ),
    "the_middle_weighted": lambda y, z: weighted(y[:, 3:-2], z[:, 3:-2]),
    "samples_ahead": lambda y, z: tf.reduce_mean(ROW_LOSSES(y[2:], z[:-2])),
    "values_that_rows_share": lambda y, z: tf.reduce_mean(
        ROW_LOSSES(y[:, 1:], z[:, :-1]) * tf.cast(y[:, :1], tf.float32)
    ),
    "a_sum_over_rows": lambda y, z: sparse(y[:, 1:], z[:, :-1]) + 1e-3 * tf.reduce_sum(z[:, :-1] ** 2),
    "two_words_ahead": lambda y, z: sparse(y[:, 1:], z[:, :-1]) + sparse(y[:, 2:], z[:, :-2]),
    "all_rows_as_well": lambda y, z: sparse(y[:, 1:], z[:, :-1]) + sparse(y, z),
    "picked": lambda y, z: gathered(y[:, 1:], z[:, :-1]),
    "a_preference": lambda y, z: preferred(y[:, 1:], z[:, :-1]),
}


@pytest.mark.long(
    "True-*",
    "*-True",
    *(f"False-{loss}-*" for loss in ("next_words_flat", "the_middle*", "samples*", "two*", "all*", "picked")),
    but=("True-values*", "False-a_preference-True"),
)
@pytest.mark.parametrize(
    "loss, jit", [*((loss, False) for loss in SLICED), ("the_middle_weighted", True), ("a_preference", True)]
)
@pytest.mark.parametrize("dynamic", [False, True, "lengths"])
def test_losses_of_some_rows(loss, jit, dynamic):
    """Tiles have all rows. Those that are left out have no part in sums, and a gradient of zero."""
    plain, tiled, function, crossings = run(dense, SLICED[loss], data(), jit=jit, dynamic=dynamic)
    assert_same(plain, tiled, 0.1 if jit else 1e-5, of_loss=3e-6)
    assert [c.storage for c in crossings if c.shape[-1:] == (WORDS,)] == ["tile"]
    assert wide_tensors(function) == []


@pytest.mark.long("True-*", but=("True-weighted", "True-a_perplexity"))
@pytest.mark.parametrize("loss", ["sparse", "smoothed", "weighted", "gathered", "z_loss", "a_perplexity"])
@pytest.mark.parametrize("jit", [False, True])
def test_samples_and_their_length_are_known_at_run_time_only(loss, jit, monkeypatch):
    """As `fit` traces batches of several lengths: of a usual batch of usual length the logits would be large."""
    monkeypatch.setattr(limits, "LEAST_BYTES", 1 << 20)
    of_rows = {**LOSSES, **WAITING}[loss]
    plain, tiled, function, crossings = run(dense, of_rows, data(), jit=jit, dynamic="lengths")
    exponent = np.log(plain[0]) if loss == "a_perplexity" else 1.0  # by which `exp` enlarges errors
    assert_same(plain, tiled, 0.1 if jit else 1e-5, of_loss=3e-6 * exponent)
    assert [c.storage for c in crossings if c.shape[-1:] == (WORDS,)] == ["tile"]
    assert wide_tensors(function) == []


@pytest.mark.parametrize(
    "part", [np.s_[:, ::2], np.s_[:, -3:], np.s_[:, :, 1:], np.s_[1:, :-1], np.s_[:, 3], np.s_[:, 5:5]]
)
def test_losses_of_other_slices_are_right(part):
    plain, found, _, _ = run(dense, lambda y, z: tf.reduce_sum(z[part] ** 2) + sparse(y, z), data())
    assert_same(plain, found)


@pytest.mark.parametrize("jit", [False, True])
def test_what_a_head_reads_is_exact_in_another_shape(jit):
    """Nothing else reads the sum whose rows the head reads."""

    def shifted(h, kernel, bias):
        return flat(h + 0.5 * tf.reverse(h, [-1]), kernel, bias)

    plain, tiled, _, _ = run(shifted, preferred, data(), jit=jit, dynamic=False)
    np.testing.assert_allclose(tiled[1][1], plain[1][1], atol=1e-5 * np.abs(plain[1][1]).max())


@pytest.mark.long(but=["True-True-True", "False-False-True", "True-False-False", "False-True-False"])
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("flattened", [False, True])
def test_a_value_that_the_rows_of_a_sequence_share(flattened, dynamic, jit):
    """As the advantage of a sequence, in the clipped loss of its tokens (PPO)."""

    def clipped(y, z):
        shares = tf.cast(y[:, :1], tf.float32) / WORDS - 0.5
        logs = tf.nn.log_softmax(tf.reshape(z, [-1, WORDS]) if flattened else z)
        picked = (
            tf.reshape(tf.gather(logs, tf.reshape(y, [-1]), batch_dims=1), tf.shape(y)) if flattened else None
        )
        own = tf.gather(logs, y, batch_dims=2) if picked is None else picked
        ratio = tf.exp(own - tf.stop_gradient(own) + 0.3 * shares)
        return -tf.reduce_mean(tf.minimum(ratio * shares, tf.clip_by_value(ratio, 0.9, 1.1) * shares))

    plain, tiled, _, crossings = run(dense, clipped, data(), jit=jit, dynamic=dynamic)
    assert_same(plain, tiled, 0.1 if jit else 1e-5, of_loss=3e-6, of_terms=1e-6)
    assert "tile" in [crossing.storage for crossing in crossings]


@pytest.mark.parametrize("jit", [False, True])
def test_two_heads_whose_losses_wait_for_each_other(jit):
    batch = data()

    def trained(compress):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((32, WIDTH))
        h = keras.layers.LayerNormalization()(keras.layers.Dense(WIDTH, activation="tanh")(inputs))
        model = keras.Model(inputs, [keras.layers.Dense(WORDS)(h) for _ in range(2)])
        if compress:
            ct.compress_model(model, codec="plane" if jit else "zvc")

        def step(x, y):
            with tf.GradientTape() as tape:
                first, second = model(x)
                apart = tf.nn.log_softmax(first) - tf.nn.log_softmax(second)
                apart = tf.reduce_mean(tf.reduce_sum(tf.nn.softmax(first) * apart, -1))
                value = sparse(y, first) + tf.square(tf.nn.relu(apart))
            return value, tape.gradient(value, model.trainable_variables)

        return (tf.function(step, autograph=False, jit_compile=jit) if compress or jit else step)(*batch)

    assert_same(trained(False), trained(True), 0.1 if jit else 1e-5, of_loss=3e-6)


@pytest.mark.parametrize("jit", [False, True])
def test_logits_of_a_model_that_is_not_trained(jit):
    """As of the reference that a preference is held against."""
    table, kernel = (tf.constant(RNG.normal(size=shape), tf.float32) for shape in ((WORDS, WIDTH), SHAPES[1]))

    def reference(y):
        return tf.stop_gradient(tf.nn.log_softmax(tf.tensordot(tf.gather(table, y), kernel, 1)))

    def compared(logs, y):
        chosen, other = tf.split(tf.reduce_sum(tf.gather(logs, y, batch_dims=2), -1), 2)
        return chosen - other

    losses = (
        lambda y, z: tf.exp(0.01 * (compared(reference(y), y) - compared(tf.nn.log_softmax(z), y))),
        lambda y, z: tf.exp(0.01 * compared(reference(y) - tf.nn.log_softmax(z), y)),
        lambda y, z: tf.reduce_sum(tf.exp(reference(y)) * (reference(y) - tf.nn.log_softmax(z)), -1),
    )
    for number, loss in enumerate(losses):
        mean = lambda y, z, loss=loss: tf.reduce_mean(loss(y, z))  # noqa: E731
        plain, tiled, function, _ = run(dense, mean, data(), jit=jit, dynamic=False)
        is_stream = jit and number == 2  # what the head reads, in one pass
        # Unoptimized programs of XLA add up word after word.
        assert_same(plain, tiled, 0.1 if is_stream else 1e-5, of_loss=1e-5 if jit else 3e-6)
        assert wide_tensors(function) == []


@pytest.mark.parametrize("jit", [False, True])
def test_a_teacher_that_runs_before_whom_it_teaches(jit):
    """Its logits are made beside the others, which have a loss of their own."""
    kernel, taught = tf.constant(RNG.normal(size=SHAPES[1]), tf.float32), []

    def head(h, *parts):
        taught[:] = [tf.nn.softmax(tf.tensordot(tf.stop_gradient(tf.reverse(h, [-1])), kernel, 1) / 2.0)]
        return dense(h, *parts)

    def loss(y, z):
        return keras.losses.KLDivergence()(taught[0], tf.nn.softmax(z / 2.0)) + sparse(y, z)

    plain, tiled, function, _ = run(head, loss, data(), jit=jit, dynamic=False)
    assert_same(plain, tiled, 0.1 if jit else 1e-5, of_loss=3e-6)
    assert wide_tensors(function) == []


def beside_vectors(y, z):
    """The same places pick values of rows, and vectors of another tensor, whose gradients are scattered alike."""
    vectors = tf.gather(tf.reshape(z, [-1, WORDS, z.shape[1]]), y, batch_dims=1)
    own = tf.gather(tf.nn.log_softmax(z), y, batch_dims=2)
    return tf.reduce_mean(vectors) - tf.reduce_mean(own)


def test_other_gradients_of_the_same_places_stay():
    plain, found, _, _ = run(dense, beside_vectors, data())
    assert_same(plain, found)


def beside_a_vector(y, z):
    """One operation passes on the logits and a vector, which others read whole."""
    z, vector = tf.identity_n([z, tf.cast(y[0] % 7, tf.float32)])
    return sparse(y, z) * tf.reduce_sum(vector)


def test_what_is_passed_on_beside_the_logits():
    plain, found, _, _ = run(dense, beside_a_vector, data())
    assert_same(plain, found)


def largest(_, z):
    return tf.reduce_max(tf.abs(z))


def largest_below_zero(_, z):
    return tf.reduce_max(-1.0 - tf.abs(z))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("metric, is_tiled", [(largest, True), (largest_below_zero, False)])
def test_the_largest_value_of_all_rows(metric, is_tiled, jit):
    plain, found, function, _ = run(dense, sparse, data(7, 31), metric, jit)
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-6)
    if not jit:  # whose streams are exact
        assert_same(plain, found)
    np.testing.assert_allclose(found[2], plain[2], rtol=1e-6)
    assert bool(wide_tensors(function)) != is_tiled


def test_several_values_of_a_row():
    plain, found, _, crossings = run(dense, several, data())
    assert_same(plain, found)
    assert "tile" in [crossing.storage for crossing in crossings]


def entropies(y, z):
    """Losses of the halves of a batch, by the operation that makes their gradient beside them."""
    own = tf.nn.sparse_softmax_cross_entropy_with_logits(y, z)
    chosen, other = tf.split(tf.reduce_sum(own, -1), 2)
    return tf.reduce_mean(tf.math.softplus(0.1 * (chosen - other)))


def smoothed_entropies(y, z):
    labels = 0.9 * tf.one_hot(y, WORDS) + 0.1 / WORDS
    return tf.math.log(tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels, z)))


WAITING = {
    "a_preference": preferred,
    "a_preference_of_entropies": entropies,
    "a_logarithm_of_a_mean": smoothed_entropies,
    "a_perplexity": lambda y, z: tf.exp(sparse(y, z)),
    "the_hardest_rows": lambda y, z: tf.reduce_logsumexp(
        tf.nn.sparse_softmax_cross_entropy_with_logits(y, z)
    ),
}


@pytest.mark.long(
    "*-tied-*",
    "*-capped-*",
    "*-flat-*",
    "a_preference_of_entropies-dense-True",
    "a_perplexity-dense-True",
    but=("a_preference-flat-*", "a_perplexity-tied-*"),
)
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("head", ["dense", "tied", "capped", "flat"])
@pytest.mark.parametrize("loss", WAITING)
def test_a_gradient_that_waits_for_all_rows(loss, head, jit):
    """The logits are made again for it, by tiles, of exactly what they were made of."""
    plain, tiled, function, crossings = run(HEADS[head], WAITING[loss], data(), jit=jit, dynamic=False)
    exponent = np.log(plain[0]) if loss == "a_perplexity" else 1.0  # by which `exp` enlarges errors
    assert_same(plain, tiled, of_loss=3e-6 * exponent)
    assert [c.storage for c in crossings if c.shape[-1:] == (WORDS,)] == ["tile"]
    assert wide_tensors(function) == []


@pytest.mark.parametrize("jit", [False, True])
def test_picked_values_and_the_gradient_of_others(jit):
    """Where one of two losses reads all: infinite gradients of what is picked stay where they are."""

    def loss(y, z):
        own = tf.gather(z, y, batch_dims=2)
        return tf.reduce_sum(tf.where(own > 0, own, 1e38 * own * 1e38))

    plain, found, _, _ = run(dense, loss, data(2), jit=jit, eager=False)
    for ours, its in zip(found[1][2:], plain[1][2:]):
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(its))


@pytest.mark.parametrize("cut", [lambda w: w[..., 0], lambda w: tf.gather(w, [[0]] * 512, batch_dims=1)])
def test_gradients_of_weights_that_are_cut_or_picked_are_returned(cut):
    """Nothing stands behind such a gradient that could read another in its place."""
    model = Weights([512, 1], [16, 512])
    ct.compress_model(model, check=False)

    @tf.function(autograph=False)
    def step():
        last, kernel = (part.value for part in model.parts)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                tf.reshape(cut(tf.convert_to_tensor(last)), [512]) * tf.reduce_sum(kernel, 0)
            )
        return tape.gradient(loss, [last])[0]

    expected = tf.reduce_sum(model.parts[1].value, 0)
    np.testing.assert_allclose(tf.reshape(step(), [512]), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "cut, drops",
    [
        (lambda x: x[..., 0], True),
        (lambda x: x[:, :, 0], True),
        (lambda x: x[..., -1], True),
        (lambda x: x[::-1, :, 0], False),
        (lambda x: x[1:, :, 0], False),
        (lambda x: x[:, 0], False),
        (lambda x: x[..., 0:1], False),
        (lambda x: x[..., 0, None], False),
    ],
)
def test_slices_that_only_drop_a_dimension(cut, drops):
    @tf.function(input_signature=[tf.TensorSpec((None, 4, 1))])
    def cutting(x):
        return cut(x)

    (op,) = (op for op in cutting.get_concrete_function().graph.get_operations() if op.type == "StridedSlice")
    assert drops_last(op, op.inputs[0]) == drops


@pytest.mark.long(but=["any_batch-tied", "one_batch-dense"])
@pytest.mark.parametrize("head", ["dense", "tied"])
@pytest.mark.parametrize("dynamic", [True, False], ids=["any_batch", "one_batch"])
def test_loss_and_gradients_under_xla(head, dynamic):
    # The inner weight's gradient reads streams: of the head nothing is restored.
    plain, tiled, _, crossings = run(HEADS[head], sparse, data(), jit=True, dynamic=dynamic)
    np.testing.assert_allclose(tiled[0], plain[0], rtol=1e-6)
    assert np.linalg.norm(tiled[1][1] - plain[1][1]) <= 1e-5 * np.linalg.norm(plain[1][1])
    assert "tile" in [crossing.storage for crossing in crossings]


@pytest.mark.long(but=["7-31-weighted", "1-1-with_squares", "3-257-dense"])
@pytest.mark.parametrize("loss", ["weighted", "with_squares", "dense"])
@pytest.mark.parametrize("samples, steps", [(7, 31), (1, 1), (3, 257)])
def test_any_number_of_rows(samples, steps, loss):
    plain, tiled, _, crossings = run(flat, LOSSES[loss], data(samples, steps))
    assert_same(plain, tiled)
    assert "tile" in [crossing.storage for crossing in crossings]


@pytest.mark.long
@pytest.mark.long(but=["with_squares", "gathered_logits"])
@pytest.mark.parametrize("loss", [with_squares, gathered, gathered_logits, taken_along])
def test_any_number_of_rows_under_xla(loss):
    plain, tiled, _, crossings = run(flat, loss, data(7, 31), jit=True)
    assert np.linalg.norm(tiled[1][1] - plain[1][1]) <= 1e-5 * np.linalg.norm(plain[1][1])
    assert "tile" in [crossing.storage for crossing in crossings]


METRICS = {
    "accuracy": lambda y, z: keras.metrics.sparse_categorical_accuracy(y, z),
    "top_5": lambda y, z: keras.metrics.sparse_top_k_categorical_accuracy(y, z, 5),
    "entropy": lambda y, z: -tf.reduce_sum(tf.nn.softmax(z) * tf.nn.log_softmax(z), -1),
    "shape": lambda y, z: tf.shape(z),
}


@pytest.mark.long(but=["accuracy-*", "entropy-executor"])
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("metric", METRICS)
def test_metrics_that_come_after_the_gradient(metric, jit):
    plain, tiled, function, _ = run(dense, sparse, data(), METRICS[metric], jit)
    np.testing.assert_allclose(tiled[2], plain[2], rtol=1e-4)
    assert wide_tensors(function) == []


def test_what_reads_the_logits_whole_keeps_them_whole(caplog):
    plain, tiled, function, crossings = run(dense, sparse, data(), lambda y, z: tf.nn.softmax(z))
    assert_same(plain, tiled)
    np.testing.assert_allclose(tiled[2], plain[2], rtol=1e-5)
    assert wide_tensors(function)
    assert [c.storage for c in crossings if c.shape[-1:] == (WORDS,)] == ["keep"]
    assert "read whole" in "".join(c.note for c in crossings)


UNTILED = {
    "a_mean_of_all_logits": lambda y, z: sparse(y, z) + 1e-3 * tf.reduce_mean(z**2),
    "a_loss_that_mixes_rows": lambda y, z: sparse(y, z[:, ::-1]),
    "a_loss_of_half_the_squares": lambda y, z: sparse(y, z) + 1e-3 * tf.nn.l2_loss(z),
}


@pytest.mark.parametrize("loss", UNTILED)
def test_what_depends_on_other_rows_is_plain(loss):
    plain, untiled, function, crossings = run(dense, UNTILED[loss], data())
    assert_same(plain, untiled)
    assert wide_tensors(function)
    assert "tile" not in [crossing.storage for crossing in crossings]


@pytest.mark.parametrize("how", [{"storage": "keep"}, {"storage": {"the/head": "keep"}}], ids=["all", "head"])
def test_what_is_to_be_kept_is_bit_equal(how):
    def named(h, kernel, bias):
        with tf.name_scope("the/head"):
            return dense(h, kernel, bias)

    plain, kept, function, _ = run(named, sparse, data(), eager=False, **how)
    for ours, its in zip(kept[1], plain[1]):
        np.testing.assert_array_equal(ours, its)
    assert wide_tensors(function)
