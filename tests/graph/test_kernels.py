"""Gradients of weights that are made of held tensors, and the error-bound law on them."""

import numpy as np
import pytest
import tensorflow as tf
from steps import Weights, gradient_step, plain_gradients

import tf_comptrain as ct
from tf_comptrain import theory
from tf_comptrain.compression.instrumentation import instrumentation

RNG = np.random.default_rng(0)
DRAWS = 20
TEXT, PICTURES, VOLUMES = (16, 32, 64), (8, 16, 16, 16), (4, 8, 8, 8, 8)


class Small(Weights):
    """Weights as they are when a training begins, with a mean of zero."""

    def __init__(self, *shapes):
        super().__init__(*shapes)
        rng = np.random.default_rng(5)
        for part in self.parts:
            part.assign(rng.normal(size=part.shape) * 0.1)


def collecting(model, bound=0.2):
    """The handle of a model that is held compressed, on collecting steps."""
    ct.compress_model(model, error_bound=ct.ErrorBound(bound))
    handle = instrumentation(model)
    handle.collect_statistics(model)
    handle.collecting.assign(True)
    return handle


def total(y):
    """A loss whose gradient does not depend on y, and so has no error."""
    return tf.reduce_sum(y * np.random.default_rng(1).normal(size=y.shape).astype("float32"))


def laws_of(loss, x, shapes):
    """Places of the law, whether each is alone, by the number of the weight."""
    model = Small(*shapes)
    handle = collecting(model)
    gradient_step(loss, model)(x)
    return [(law.weight.name, law.alone) for law in handle.held.law_sites()]


def relu(y):
    return tf.nn.relu(y)


def conv(x, w, strides=1):
    return tf.nn.conv2d(x, w, strides, "SAME")


def transposed(x, w):
    return tf.nn.conv2d_transpose(x, w, [8, 32, 32, 6], 2, "SAME")


PRODUCTS = {
    "matmul": (TEXT, [(64, 48), (48, 40)], lambda x, v, w: tf.matmul(relu(tf.matmul(x, v)), w)),
    "matmul of matrices": (
        (512, 64),
        [(64, 64), (64, 40)],
        lambda x, v, w: tf.matmul(relu(tf.matmul(x, v)), w),
    ),
    "matmul, weight transposed": (
        TEXT,
        [(64, 48), (40, 48)],
        lambda x, v, w: tf.matmul(relu(tf.matmul(x, v)), w, transpose_b=True),
    ),
    "matmul, weight first": (TEXT, [(64, 48), (40, 32)], lambda x, v, w: tf.matmul(w, relu(tf.matmul(x, v)))),
    "matmul of a view": (
        TEXT,
        [(64, 48), (24, 40)],
        lambda x, v, w: tf.matmul(tf.reshape(relu(tf.matmul(x, v)), (16, 64, 24)), w),
    ),
    "tensordot": (
        TEXT,
        [(64, 48), (48, 40)],
        lambda x, v, w: tf.tensordot(relu(tf.tensordot(x, v, 1)), w, 1),
    ),
    "einsum into heads": (
        TEXT,
        [(64, 48), (48, 4, 12)],
        lambda x, v, w: tf.einsum("btd,dhk->bhtk", relu(tf.matmul(x, v)), w),
    ),
    "einsum out of heads": (
        TEXT,
        [(64, 4, 12), (4, 12, 40)],
        lambda x, v, w: tf.einsum("bthk,hkd->btd", relu(tf.einsum("btd,dhk->bthk", x, v)), w),
    ),
    "einsum of each expert": (
        TEXT,
        [(3, 64, 12), (3, 12, 40)],
        lambda x, v, w: tf.einsum("betk,ekd->betd", relu(tf.einsum("btd,edk->betk", x, v)), w),
    ),
    "convolution": (PICTURES, [(3, 3, 16, 24), (3, 3, 24, 8)], lambda x, v, w: conv(relu(conv(x, v)), w, 2)),
    "convolution in groups": (
        PICTURES,
        [(3, 3, 16, 24), (3, 3, 6, 8)],
        lambda x, v, w: conv(relu(conv(x, v)), w),
    ),
    "depthwise convolution": (
        PICTURES,
        [(3, 3, 16, 24), (3, 3, 24, 2)],
        lambda x, v, w: tf.nn.depthwise_conv2d(relu(conv(x, v)), w, (1, 2, 2, 1), "SAME"),
    ),
    "transposed convolution": (
        PICTURES,
        [(3, 3, 16, 24), (3, 3, 6, 24)],
        lambda x, v, w: transposed(relu(conv(x, v)), w),
    ),
    "convolution of volumes": (
        VOLUMES,
        [(3, 3, 3, 8, 16), (3, 3, 3, 16, 8)],
        lambda x, v, w: tf.nn.conv3d(relu(tf.nn.conv3d(x, v, [1] * 5, "SAME")), w, [1] * 5, "SAME"),
    ),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_measured_error_agrees_with_the_law(product):
    """Root mean square of the gradient's error over many draws of the dither, against the prediction."""
    shape, shapes, fn = PRODUCTS[product]
    x = tf.constant(RNG.normal(size=shape), tf.float32)

    def loss(x, *weights):
        return total(fn(x, *weights))

    model = Small(*shapes)
    plain = plain_gradients(loss, x, model)[1]
    held = collecting(model).held
    step = gradient_step(loss, model)
    errors = [step(x)[1].numpy() - plain for _ in range(DRAWS)]
    (law,) = held.law_sites()
    assert law.weight is model.parts[1] and law.alone
    state, (sum_sq, _, _, weight_sum_sq, *_) = law.site.read_state(), law.statistics.numpy()
    predicted = theory.weight_gradient_sigma(state.bound_used, state.nonzero_ratio, law.share * sum_sq)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(predicted, rel=0.25)
    last = plain + errors[-1]
    assert weight_sum_sq * last.shape[-1] == pytest.approx(np.square(last).sum(), rel=1e-3)


def test_a_weight_with_several_products_gets_the_error_of_all():
    x = tf.constant(RNG.normal(size=TEXT), tf.float32)

    def loss(x, v, w):
        return total(tf.matmul(relu(tf.matmul(x, v)), w)) + total(tf.matmul(relu(tf.matmul(x * x, v)), w))

    model = Small((64, 48), (48, 40))
    plain = plain_gradients(loss, x, model)[1]
    held = collecting(model).held
    step = gradient_step(loss, model)
    errors = [step(x)[1].numpy() - plain for _ in range(DRAWS)]
    found = []
    for law in held.law_sites():
        state = law.site.read_state()
        sum_sq = law.share * law.statistics.numpy()[0]
        found.append(theory.weight_gradient_sigma(state.bound_used, state.nonzero_ratio, sum_sq))
    assert len(found) == 2
    # Each predicts the whole as if the others were like it.
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.sqrt(np.mean(np.square(found))), rel=0.25)


X = tf.constant(RNG.normal(size=TEXT), tf.float32)


def test_one_tensor_for_several_weights():
    def loss(x, v, q, k):
        h = tf.matmul(x, v)
        return total(tf.matmul(h, q)) + total(tf.matmul(h, k))

    assert sorted(laws_of(loss, X, [(64, 48), (48, 40), (48, 40)])) == [("w1", True), ("w2", True)]


def test_a_penalty_on_the_weight_changes_nothing():
    def loss(x, v, w):
        return total(tf.matmul(relu(tf.matmul(x, v)), w)) + tf.reduce_sum(w * w)

    assert laws_of(loss, X, [(64, 48), (48, 40)]) == [("w1", True)]


def test_a_tensor_that_something_else_reads_is_not_alone():
    """The gradient of a sigmoid reads its output; that error travels on."""

    def loss(x, v, w):
        return total(tf.matmul(tf.sigmoid(tf.matmul(x, v)), w))

    assert laws_of(loss, X, [(64, 48), (48, 40)]) == [("w1", False)]


def test_a_weight_that_is_not_the_models_is_not_steered():
    theirs = tf.Variable(RNG.normal(size=(48, 40)) * 0.1, dtype=tf.float32)
    model = Small((64, 48), (48, 40))
    held = collecting(model).held

    @tf.function(autograph=False)
    def step(x):
        v, w = (part.value for part in model.parts)
        with tf.GradientTape() as tape:
            h = relu(tf.matmul(x, v))
            loss = total(tf.matmul(h, w)) + total(tf.matmul(h, theirs))
        return tape.gradient(loss, [v, w, theirs])

    step(X)
    assert [(law.weight.name, law.alone) for law in held.law_sites()] == [("w1", False)]


def test_a_product_that_is_no_gradient_of_a_weight_alone():
    """The gradient of the values goes on to their weight, and is summed for the bias that is added to them."""

    def loss(x, q, v, bias):
        return total(tf.matmul(tf.nn.softmax(tf.matmul(x, q)), tf.matmul(x, v)[:, :32] + bias))

    assert laws_of(loss, X, [(64, 32), (64, 64), (64,)]) == []


def test_a_sum_over_more_than_matrices_is_no_product_of_the_law():
    """A bias on constant values: its gradient is summed along what the stored tensor has."""

    def loss(x, q, bias):
        return total(tf.matmul(tf.nn.softmax(tf.matmul(x, q)), x[:, :32] + bias))

    assert laws_of(loss, X, [(64, 32), (64,)]) == []


def test_a_stored_tensor_that_is_broadcast_is_left_out():
    """Each of its elements meets an element of the gradient once for every matrix that it is broadcast to."""

    def loss(x, v, w):
        h = relu(tf.matmul(x, v))[:, None]
        return total(tf.matmul(h, tf.tile(w[None, None], (1, 4, 1, 1))))

    assert laws_of(loss, X, [(64, 48), (48, 40)]) == []


def test_what_is_rebuilt_from_a_stream_is_left_out():
    def loss(x, v, w):
        return total(tf.matmul(tf.nn.gelu(tf.matmul(x, v)), w))

    assert laws_of(loss, X, [(64, 48), (48, 40)]) == []


def operations(collect):
    model = Small((64, 48), (48, 40))
    ct.compress_model(model)
    if collect:
        instrumentation(model).collect_statistics(model)
    step = gradient_step(lambda x, v, w: total(tf.matmul(relu(tf.matmul(x, v)), w)), model)
    return step.get_concrete_function(X).graph.get_operations()


def test_without_a_callback_that_collects_a_step_has_no_operation_for_it():
    plain, with_statistics = ([op.type for op in operations(collect)] for collect in (False, True))
    assert "Comptrain>GradientStats" not in plain
    assert with_statistics.count("Comptrain>GradientStats") == 2
    assert len(plain) < len(with_statistics)


def test_the_incoming_gradient_is_looked_at_before_the_product_and_not_kept_for_later():
    found = operations(True)
    products = [op for op in found if op.type in ("BatchMatMulV2", "MatMul") and "gradient_tape" in op.name]
    waits = [op.type for product in products for op in product.control_inputs]
    assert waits.count("Comptrain>GradientStats") == 1


def test_a_gradient_that_is_differentiated_again_is_not_steered():
    model = Small((64, 48), (48, 40))
    held = collecting(model).held

    @tf.function(autograph=False)
    def step(x):
        v, w = (part.value for part in model.parts)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = total(tf.tanh(tf.matmul(relu(tf.matmul(x, v)), w)))
            norm = tf.reduce_sum(tf.square(inner.gradient(loss, w)))
        return outer.gradient(norm, v)

    step(X)
    assert [law.weight.name for law in held.law_sites() if law.weight.name == "w1"] == []


def test_statistics_of_16_bit_types():
    def loss(x, v, w):
        h = relu(tf.matmul(tf.cast(x, tf.bfloat16), tf.cast(v, tf.bfloat16)))
        return total(tf.cast(tf.matmul(h, tf.cast(w, tf.bfloat16)), tf.float32))

    model = Small((64, 48), (48, 40))
    plain = plain_gradients(loss, X, model)[1]
    held = collecting(model).held
    gradient_step(loss, model)(X)
    (law,) = held.law_sites()
    assert law.statistics.numpy()[3] * 40 == pytest.approx(np.square(plain).sum(), rel=0.05)
