"""The inside of an attention runs by tiles of matrices: loss and gradients are the same, no scores are whole."""

import keras_hub
import numpy as np
import pytest
import tensorflow as tf
import tiled_steps
from tensorflow import keras
from tiled_steps import assert_same, made_whole, scaled_model, step_of

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.graph.tiles import limits

SAMPLES, STEPS, HEADS, SIZE = 3, 64, 4, 8
WIDTH = HEADS * SIZE
SHAPES = [[WIDTH, WIDTH]] * 4
RNG = np.random.default_rng(0)


# Bytes of a tile: of five matrices, of which four run at once; of half a matrix.
TILES = {"matrices": 5 << 14, "queries": 1 << 13}


@pytest.fixture(autouse=True, params=TILES)
def small_tiles(request, monkeypatch):
    monkeypatch.setattr(limits, "LEAST_BYTES", 1 << 16)
    monkeypatch.setattr(limits, "TILE_BYTES", TILES[request.param])
    monkeypatch.setattr(limits, "SMALLER_OF_HALVES", 1)


def parts_of(x, weights):
    return [tf.reshape(tf.matmul(x, w), [-1, STEPS, HEADS, SIZE]) for w in weights]


def einsum(q, k, v, of_scores):
    p = tf.nn.softmax(of_scores(tf.einsum("btnh,bsnh->bnts", q, k) / SIZE**0.5))
    return tf.einsum("bnts,bsnh->btnh", p, v)


def keys_first(q, k, v, of_scores):
    """As Keras has it where an attention has dropout."""
    scores = keras.ops.einsum("aecd,abcd->acbe", k, q / SIZE**0.5)
    return keras.ops.einsum("acbe,aecd->abcd", tf.nn.softmax(of_scores(scores)), v)


def matmul(q, k, v, of_scores):
    with tf.name_scope("held/parts"):
        q, k, v = (tf.transpose(each, [0, 2, 1, 3]) for each in (q, k, v))
    p = tf.nn.softmax(of_scores(tf.matmul(q, k, transpose_b=True) * SIZE**-0.5))
    return tf.transpose(tf.matmul(p, v), [0, 2, 1, 3])


def one_batch(q, k, v, of_scores):
    """Samples and heads are one dimension, as in many attentions written by hand."""

    def flat(each):
        return tf.reshape(tf.transpose(each, [0, 2, 1, 3]), [-1, STEPS, SIZE])

    scores = tf.matmul(flat(q), flat(k), transpose_b=True) / SIZE**0.5
    scores = of_scores(tf.reshape(scores, [-1, HEADS, STEPS, STEPS]))
    p = tf.reshape(tf.nn.softmax(scores), [-1, STEPS, STEPS])
    return tf.transpose(tf.reshape(tf.matmul(p, flat(v)), [-1, HEADS, STEPS, SIZE]), [0, 2, 1, 3])


def by_hand(q, k, v, of_scores):
    scores = of_scores(tf.einsum("btnh,bsnh->bnts", q, k) / SIZE**0.5)
    e = tf.exp(scores - tf.stop_gradient(tf.reduce_max(scores, -1, keepdims=True)))
    return tf.einsum("bnts,bsnh->btnh", e / tf.reduce_sum(e, -1, keepdims=True), v)


def half(q, k, v, of_scores):
    made = einsum(*(tf.cast(each, tf.bfloat16) for each in (q, k, v)), of_scores)
    return tf.cast(made, tf.float32)


def plain_scores(scores):
    return scores


def padded(scores):
    there = tf.range(STEPS) < tf.reshape(40 + tf.range(tf.shape(scores)[0]), [-1, 1, 1, 1])
    return tf.where(there, scores, -1e9)


def causal(scores):
    """A sum with what is very negative, for each sample its own."""
    seen = tf.linalg.band_part(tf.ones([STEPS, STEPS], scores.dtype), -1, 0)
    seen = tf.tile(seen[None, None], [tf.shape(scores)[0], 1, 1, 1])
    return scores + (1 - seen) * -1e9


def alibi(scores):
    slopes = tf.reshape(2.0 ** -tf.range(1.0, HEADS + 1), [1, HEADS, 1, 1])
    return scores + tf.cast(
        slopes * -tf.abs(tf.range(1.0 * STEPS)[:, None] - tf.range(1.0 * STEPS)), scores.dtype
    )


def capped(scores):
    return 5 * tf.tanh(scores / 5)


def dropped(scores):
    return tf.nn.experimental.stateless_dropout(scores, 0.3, seed=[1, 2])


WRITINGS = {f.__name__: f for f in (einsum, keys_first, matmul, one_batch, half)}
SCORES = {f.__name__: f for f in (plain_scores, padded, causal, alibi, capped, dropped)}
CASES = [
    *((name, "plain_scores") for name in WRITINGS),
    *(("einsum", name) for name in list(SCORES)[1:]),
    ("half", "dropped"),
]
# Rounding of bfloat16, which a dropout of 0.3 magnifies.
TOLERANCES = {("half", "plain_scores"): 1e-2, ("half", "dropped"): 1e-2 / 0.7}


def network(writing, of_scores):
    def run(x, *weights):
        with tf.name_scope("held/parts"):
            q, k, v = parts_of(x, weights[:3])
        made = writing(q, k, v, of_scores)
        with tf.name_scope("held/rest"):
            made = tf.reshape(made, [-1, STEPS, WIDTH])
            made = x + tf.matmul(made, weights[3])
            return tf.reduce_mean(tf.sin(made) * tf.range(1.0 * WIDTH) / WIDTH)

    return run


def data(samples=SAMPLES):
    return tf.constant(RNG.normal(size=(samples, STEPS, WIDTH)), tf.float32)


def spec(dynamic=True):
    return [None if dynamic else SAMPLES, STEPS, WIDTH]


def run(loss, x, jit=False, dynamic=True, **how):
    how = how or ({"storage": {"held/parts": "keep", "held/rest": "keep"}} if jit else {"codec": "zvc"})
    return tiled_steps.run(loss, x, SHAPES, spec(dynamic), jit, **how)


def whole_scores(function):
    """What a run makes that has the scores of several matrices, and not a bias of all heads or samples."""
    return [
        tensor
        for tensor in made_whole(function)
        if tensor.shape.rank > 2 and tensor.shape[-2:] == [STEPS, STEPS] and 1 not in tensor.shape[:-2]
    ]


@pytest.mark.long("queries-*", but=["queries-einsum-padded"])
@pytest.mark.parametrize("writing, scores", CASES)
def test_loss_and_gradients_are_plains(writing, scores):
    plain, tiled, function, crossings = run(network(WRITINGS[writing], SCORES[scores]), data())
    assert_same(plain, tiled, TOLERANCES.get((writing, scores), 1e-5))
    assert "tile" in [crossing.storage for crossing in crossings]
    assert whole_scores(function) == []


@pytest.mark.long(but=["matrices-any_batch-einsum-dropped"])
@pytest.mark.parametrize("scores", ["padded", "causal", "dropped"])
@pytest.mark.parametrize("writing", ["einsum", "matmul"])
@pytest.mark.parametrize("dynamic", [True, False], ids=["any_batch", "one_batch"])
def test_loss_and_gradients_under_xla(writing, scores, dynamic):
    loss = network(WRITINGS[writing], SCORES[scores])
    plain, tiled, function, crossings = run(loss, data(), jit=True, dynamic=dynamic)
    assert_same(plain, tiled)
    assert "tile" in [crossing.storage for crossing in crossings]
    assert whole_scores(function) == []


def run_with_one_bias(bias_of, jit):
    """Two attentions, one after the other, whose scores have the same weight added to them."""

    def loss(x, *weights):
        bias = bias_of(tf.reshape(weights[4], [1, HEADS, STEPS, STEPS]), x)
        for _ in range(2):
            made = einsum(*parts_of(x, weights[:3]), lambda scores: scores + bias)
            x = x + tf.matmul(tf.reshape(made, [-1, STEPS, WIDTH]), weights[3])
        return tf.reduce_mean(tf.sin(x) * tf.range(1.0 * WIDTH) / WIDTH)

    shapes = [*SHAPES, [HEADS * STEPS, STEPS]]
    plain, found, function, crossings = tiled_steps.run(
        loss, data(), shapes, spec(False), jit, **({} if jit else {"codec": "zvc"})
    )
    assert_same(plain, found, 0.3 if jit else 1e-5)
    return function, [crossing.storage for crossing in crossings]


@pytest.mark.long("queries-*")
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_a_bias_that_several_attentions_share_leaves_the_later_ones_whole(jit):
    """Of each sample: its gradient adds up those of their scores, of which one comes of the other."""
    run_with_one_bias(lambda weight, x: weight + tf.zeros_like(x[:, None, None, :, 0]), jit)


@pytest.mark.long("queries-*")
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_positions_that_several_attentions_share(jit, monkeypatch):
    """As T5's: the gradient of their bias is a sum over samples, so tiles have whole samples."""
    monkeypatch.setattr(limits, "TILE_BYTES", (limits.SMALLER_UNDER_XLA if jit else 1) * TILES["matrices"])
    function, storages = run_with_one_bias(lambda weight, x: weight, jit)
    assert storages.count("tile") == 2
    assert whole_scores(function) == []


@pytest.mark.long(but=["matrices-1", "matrices-7", "queries-7"])
@pytest.mark.parametrize("samples", [1, 2, 7])
def test_any_number_of_samples(samples):
    plain, tiled, function, _ = run(network(einsum, padded), data(samples))
    assert_same(plain, tiled)
    assert whole_scores(function) == []


def layer_model(layer, jit):
    keras.utils.set_random_seed(0)
    inputs, there = keras.Input((STEPS, WIDTH)), keras.Input((STEPS,), dtype="bool")
    x = keras.layers.Dense(WIDTH)(inputs)
    x = x + layer(x, there)
    model = keras.Model([inputs, there], keras.layers.Dense(WIDTH)(keras.layers.Dense(WIDTH)(x)))
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=jit)
    ct.compress_model(model, check=False, **({} if jit else {"codec": "zvc"}))
    return model


LAYERS = {
    "MultiHeadAttention": lambda x, there: keras.layers.MultiHeadAttention(HEADS, SIZE)(
        x, x, attention_mask=there[:, None, :], use_causal_mask=True
    ),
    "with_dropout": lambda x, there: keras.layers.MultiHeadAttention(HEADS, SIZE, dropout=0.3)(
        x, x, attention_mask=there[:, None, :]
    ),
    "GroupQueryAttention": lambda x, there: keras.layers.GroupQueryAttention(SIZE, HEADS, 2)(x, x),
    "TransformerEncoder": lambda x, there: keras_hub.layers.TransformerEncoder(WIDTH, HEADS)(
        x, padding_mask=there
    ),
    "TransformerDecoder": lambda x, there: keras_hub.layers.TransformerDecoder(WIDTH, HEADS)(
        x, decoder_padding_mask=there
    ),
}


@pytest.mark.long(
    but=[
        "queries-MultiHeadAttention-XLA",
        "matrices-MultiHeadAttention-executor",
        "queries-with_dropout-executor",
    ]
)
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_train_as_without_tiles(layer, jit, monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, STEPS, WIDTH)).astype("float32")
    there = np.arange(STEPS)[None] < np.array([[64], [40], [50]])
    found = []
    for least in (1 << 16, 1 << 40):
        monkeypatch.setattr(limits, "LEAST_BYTES", least)
        model = layer_model(LAYERS[layer], jit)
        losses = [model.train_on_batch((x, there), x[..., ::-1]) for _ in range(4)]
        storages = [crossing.storage for crossing in instrumentation(model).held.crossings]
        found.append((losses, "tile" in storages))
        assert not ("tile" in storages and "bitmask" in storages)  # a dropout's numbers are drawn again
    (ours, by_tiles), (whole, is_whole_by_tiles) = found
    assert by_tiles and not is_whole_by_tiles
    np.testing.assert_allclose(ours, whole, rtol=2e-3 if jit else 1e-6)


def test_scores_that_are_returned_are_whole(caplog):
    kept = []

    def watched(scores):
        kept.append(scores)
        return scores

    model = scaled_model(SHAPES)
    ct.compress_model(model, check=False, codec="zvc")

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([None, STEPS, WIDTH])])
    def step(x):
        with tf.GradientTape() as tape:
            value = network(einsum, watched)(x, *(part.value for part in model.parts))
        return value, tape.gradient(value, [part.value for part in model.parts]), kept[-1]

    x = data()
    assert_same(step_of(scaled_model(SHAPES), network(einsum, plain_scores), spec())(x), step(x))
    assert whole_scores(step.get_concrete_function())
    assert sum("read whole" in record.message for record in caplog.records) == 1
    assert "tile" not in [crossing.storage for crossing in instrumentation(model).held.crossings]


def test_a_softmax_by_hand_is_whole(caplog):
    plain, whole, function, crossings = run(network(by_hand, plain_scores), data())
    assert_same(plain, whole)
    assert whole_scores(function) and "tile" not in [crossing.storage for crossing in crossings]
    assert sum("MB, is made whole" in record.message for record in caplog.records) == 1


def test_what_is_to_be_kept_is_bit_equal():
    plain, kept, function, _ = run(network(einsum, padded), data(), storage="keep")
    for ours, its in zip(kept[1], plain[1]):
        np.testing.assert_array_equal(ours, its)
    assert whole_scores(function)
