"""Plans in microbatches: where no step of the whole batch keeps the limit."""

import gc

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain import _keras
from tf_comptrain.compression.instrumentation import instrumentation
from tf_comptrain.model_planning import ModelPlan
from tf_comptrain.placement import accumulation

layers = keras.layers
BATCH, SIDE = 32, 16
LIMIT = 6_000_000  # the smallest plan of the whole batch takes 9.3 MB under XLA
EXECUTORS_LIMIT = 2_500_000  # and 4.3 MB on the executor, over what other tests have left


def network(jit_compile, norm=False):
    keras.utils.set_random_seed(0)
    parts = [keras.Input((SIDE, SIDE, 3), name="images")]
    for number, width in enumerate((64, 64)):
        parts.append(layers.Conv2D(width, 3, padding="same", name=f"conv{number}"))
        parts += [layers.BatchNormalization(name="norm0")] if norm and number == 0 else []
        parts.append(layers.ReLU(name=f"relu{number}"))
    parts += [layers.GlobalAveragePooling2D(name="pool"), layers.Dense(10, name="dense")]
    model = keras.Sequential(parts, name="network")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=jit_compile)
    return model


def samples(count):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, SIDE, SIDE, 3)).astype("float32"), rng.integers(0, 10, count)


@pytest.fixture(scope="module")
def under_xla():
    return ct.plan(network(True), BATCH, LIMIT)


def test_xla_plans_the_whole_step_within_the_limit(under_xla):
    assert under_xla.feasible and under_xla.batch == BATCH and under_xla.microbatches > 1
    assert under_xla.peak_bytes <= LIMIT
    assert f"batch 32 in {under_xla.microbatches} microbatches" in str(under_xla)
    model = network(True)
    under_xla.apply(model)
    assert ct.memory.memory_analysis(model, *samples(BATCH)).total_bytes <= LIMIT


def test_a_plan_in_microbatches_from_its_json(under_xla):
    again = ModelPlan.from_json(under_xla.to_json())
    assert again == under_xla
    model = network(True)
    again.apply(model)
    assert accumulation.microbatches_of(model) == under_xla.microbatches
    ct.restore_model(model)
    assert accumulation.microbatches_of(model) == 1 and "train_step" not in vars(model)


def test_fit_keeps_the_limit_and_the_losses():
    x, y = samples(3 * BATCH + 3)
    with tf.device("CPU:0"):
        model = network(False)
        gc.collect()
        limit = EXECUTORS_LIMIT + tf.config.experimental.get_memory_info("CPU:0")["current"]
        report = ct.compress_model(model, memory=limit, batch_size=BATCH, check=False)
        assert accumulation.microbatches_of(model) > 1
        assert "Confirmed by a step of two microbatches" in report.table()
        plain = network(False)
        batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]  # the last of 3
        losses = [[m.train_on_batch(*batch) for batch in batches] for m in (model, plain)]
    np.testing.assert_allclose(*losses, rtol=2e-3)


def test_there_are_more_microbatches_where_steps_take_more(caplog):
    """Beside what the process holds since, and after steps that were over."""
    x, y = samples(4 * BATCH)
    with tf.device("CPU:0"):
        model = network(False)
        gc.collect()
        limit = EXECUTORS_LIMIT + tf.config.experimental.get_memory_info("CPU:0")["current"]
        ct.compress_model(model, memory=limit, batch_size=BATCH, check=False)
        planned = accumulation.microbatches_of(model)
        beside = tf.zeros((700_000 // 4,))
        losses = [model.train_on_batch(x[:BATCH], y[:BATCH])]
        more = accumulation.microbatches_of(model)
        beside = tf.zeros((limit // 4,))
        losses += [
            model.train_on_batch(x[i : i + BATCH], y[i : i + BATCH]) for i in (BATCH, 2 * BATCH, 3 * BATCH)
        ]
        plain = network(False)
        expected = [plain.train_on_batch(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, len(x), BATCH)]
        del beside
    assert planned < more < BATCH
    assert any("A smaller `memory`" in record.message for record in caplog.records)  # whatever is done
    np.testing.assert_allclose(losses, expected, rtol=2e-3)


@pytest.mark.long
def test_batch_normalization_is_divided_only_where_asked_for():
    with pytest.raises(ValueError, match="statistics from each microbatch.*norm0.*microbatches=True"):
        ct.compress_model(network(True, norm=True), memory=LIMIT, batch_size=BATCH)
    model = network(True, norm=True)
    ct.compress_model(model, memory=LIMIT, batch_size=BATCH, microbatches=True)
    assert accumulation.microbatches_of(model) > 1


def test_it_is_not_divided_against_the_users_will():
    found = ct.plan(network(True), BATCH, LIMIT, microbatches=False)
    assert not found.feasible and found.microbatches == 1


class Squares(layers.Layer):
    """Adds a small loss: a sum over all samples, or the mean of each."""

    def __init__(self, combine):
        super().__init__()
        self._combine = combine

    def call(self, x):
        self.add_loss(1e-5 * self._combine(tf.square(x)))
        return x


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        losses = keras.losses.sparse_categorical_crossentropy(y, y_pred)
        if self.kind == "picky":
            tf.debugging.assert_greater(y, 0)  # which random targets are not
        return tf.reduce_mean(losses) + (1e-3 * tf.reduce_sum(losses) if self.kind == "own loss" else 0.0)


def classifier(kind):
    inputs = keras.Input((8,), dtype="int32" if kind == "masked" else "float32")
    first = layers.Embedding(10, 8, mask_zero=True) if kind == "masked" else layers.Dense(8)
    x = layers.Dropout(0.5)(Squares(tf.reduce_sum if kind == "sum" else tf.reduce_mean)(first(inputs)))
    model = (OwnLoss if kind in ("own loss", "picky") else keras.Model)(
        inputs, layers.Dense(4, activation="softmax")(x)
    )
    model.kind = kind
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def own_mean(labels, outputs):
    counts = tf.cast(labels != -1, tf.float32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(tf.cast(labels, tf.int32), 0), outputs)
    return tf.reduce_sum(losses * counts) / tf.maximum(tf.reduce_sum(counts), 1.0)


@pytest.mark.parametrize(
    "loss, value",
    [
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0), "0"),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1), "-1"),
        (own_mean, "-1"),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), ""),
    ],
    ids=["ignore_class=0", "ignore_class=-1", "own", "all count"],
)
@pytest.mark.parametrize("shape", [(6, 8), (8,)])
def test_losses_that_leave_targets_out(shape, loss, value):
    """They are means over those that count, of which a microbatch has more than another."""
    model = keras.Sequential([keras.Input(shape), layers.Dense(4)])
    model.compile("sgd", loss)
    found = accumulation.obstacle(model)
    assert f"with targets of {value}, is not the mean" in found if value else not found


def test_random_losses_are_not_judged():
    model = keras.Sequential([keras.Input((8,)), layers.Dense(4)])
    model.compile("sgd", lambda y, p: keras.losses.mean_squared_error(y + tf.random.normal(tf.shape(y)), p))
    assert not accumulation.obstacle(model)


@pytest.mark.parametrize(
    "loss", ["mse", "mae", "binary_crossentropy", "huber", "kl_divergence", "cosine_similarity"]
)
def test_losses_of_values_are_means(loss):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(4, activation="sigmoid")])
    model.compile("sgd", loss)
    assert not accumulation.obstacle(model)


@pytest.mark.parametrize(
    "kind, why",
    [("sum", "no mean"), ("own loss", "no mean"), ("masked", "mask of Keras"), ("mean", ""), ("picky", "")],
)
def test_losses_that_microbatches_would_change(kind, why):
    model = classifier(kind)
    before = model.get_weights()
    obstacle = accumulation.obstacle(model)
    assert why in obstacle and bool(why) == bool(obstacle)
    assert all(np.array_equal(*pair) for pair in zip(before, model.get_weights()))


def test_losses_of_a_step_are_looked_at_again():
    model = classifier("mean")
    accumulation.set_microbatches(model, 2)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(reduction="sum"))
    with pytest.raises(ValueError, match="must be means over samples.*Received: sum"):
        model.train_on_batch(tf.zeros((4, 8)), tf.zeros(4))


@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
def test_gradients_of_an_embedding_are_added_up(jit):
    def trained(count):
        keras.utils.set_random_seed(0)
        tokens = keras.Input((16,), dtype="int32")
        x = layers.GlobalAveragePooling1D()(layers.Embedding(50, 8)(tokens))
        model = keras.Model(tokens, layers.Dense(4)(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(1.0, momentum=0.9), loss, jit_compile=jit)
        accumulation.set_microbatches(model, count)
        model.train_on_batch(rng.integers(0, 50, (8, 16)), np.arange(8) % 4)
        return model.get_weights()

    found = []
    for count in (1, 4):
        rng = np.random.default_rng(0)
        found.append(trained(count))
    for plain, divided in zip(*found):
        np.testing.assert_allclose(divided, plain, rtol=1e-4, atol=1e-6)


def test_no_gradient_stays_in_memory():
    """TensorFlow folds constants of up to 10 MB: gradients of an activity's regularizer, one for each microbatch."""
    inputs = keras.Input((64, 64, 16))
    x = layers.Conv2D(16, 3, padding="same", activity_regularizer=keras.regularizers.L2(1e-3))(inputs)
    model = keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling2D()(x)))
    model.compile("sgd", "mse", jit_compile=False)
    accumulation.set_microbatches(model, 4)
    data = tf.data.Dataset.from_tensors((tf.zeros((16, 64, 64, 16)), tf.zeros((16, 4)))).repeat(2)
    with tf.device("CPU:0"):
        before = ct.memory.counters.bytes_in_use()
        with _keras.order_kept():  # as a plan's steps run
            model.fit(data, verbose=0)
        assert ct.memory.counters.bytes_in_use() < before + 16 * 64 * 64 * 16 * 4 / 4


@pytest.mark.parametrize("jit", [False, True])
def test_what_a_plan_says_of_a_tensor_is_so_in_every_microbatch(jit):
    def holdings(count, storage=None):
        model = network(jit)
        ct.compress_model(model, storage=storage)
        accumulation.set_microbatches(model, count)
        model.train_on_batch(*samples(BATCH))
        crossings = instrumentation(model).held.crossings
        return {crossing.name: crossing.storage for crossing in crossings if "relu0" in crossing.name}

    (name,) = holdings(1)
    kept = holdings(3, {name: "keep"})
    assert len(kept) == 3 and set(kept.values()) == {"keep"}


def test_a_limit_below_everything_is_refused_with_the_smallest():
    with pytest.raises(ValueError, match=r'in 32 microbatches of 1 takes about "([\d.]+)MB"'):
        ct.compress_model(network(False), memory=100_000, batch_size=BATCH)
