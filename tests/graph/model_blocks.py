"""What random models are made of: functions of a [batch, 16, 16] tensor, by name, to a tensor of any shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow import keras

layers, ops = keras.layers, keras.ops
STEPS, CHANNELS = 16, 16
SEED = 3


class Block(NamedTuple):
    """A part of a random model.

    Attributes:
      make: Returns a layer or a function of the block's input; called once for each model.
      lowers: Whether XLA compiles it.
    """

    make: Callable[[], Callable[[tf.Tensor], tf.Tensor]]
    lowers: bool = True


class Several(layers.Layer):
    """A function of a tensor and of what several layers make of it."""

    def __init__(self, function: Callable[..., tf.Tensor], *parts: layers.Layer):
        super().__init__()
        self.function, self.parts = function, parts

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.function(x, *(part(x) for part in self.parts))


def dense(activation: str | None = None) -> layers.Layer:
    return layers.Dense(CHANNELS, activation=activation)


def on_image(layer: Any, depth: int = 0) -> layers.Layer:
    """The layer on 4 x 4 pixels, or on volumes of `depth`."""
    shape = (4, 4, CHANNELS) if not depth else (depth, 4, 4, CHANNELS // depth)
    return keras.Sequential([layers.Reshape(shape), layer])


def pixels(y: tf.Tensor) -> tf.Tensor:
    return tf.reshape(y, [-1, 4, 4, CHANNELS])


def gram(y: tf.Tensor) -> tf.Tensor:
    """A symmetric positive matrix of each sample."""
    return tf.matmul(y, y, transpose_a=True) / STEPS + 0.1 * tf.eye(CHANNELS)


def square(y: tf.Tensor) -> tf.Tensor:
    """A matrix of each sample that is not symmetric, and far from singular."""
    return 0.2 * y + tf.eye(CHANNELS)


@tf.custom_gradient
def relu_by_hand(x: tf.Tensor) -> Any:
    return tf.maximum(x, 0.0), lambda dy: tf.raw_ops.ReluGrad(gradients=dy, features=x)


@tf.function(autograph=False)
def inner(y: tf.Tensor) -> tf.Tensor:
    return tf.sin(y) * y


def loop(y: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(
        lambda k, y: k < 3, lambda k, y: (k + 1, tf.tanh(y) * y + 0.1), (0, y), maximum_iterations=3
    )[1]


def similarity(y: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    return tf.matmul(tf.nn.l2_normalize(y, -1), tf.nn.l2_normalize(other, -1), transpose_b=True)


def attention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, scale: float = 0.25) -> tf.Tensor:
    return tf.matmul(tf.nn.softmax(scale * tf.matmul(q, k, transpose_b=True)), v)


def linear_attention(q: tf.Tensor, k: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
    q, k = tf.nn.elu(q) + 1.0, tf.nn.elu(k) + 1.0
    sums = tf.matmul(q, tf.matmul(k, v, transpose_a=True))
    return sums / tf.reduce_sum(q * tf.reduce_sum(k, 1, keepdims=True), -1, keepdims=True)


ACTIVATIONS = (
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid", "softplus",
    "softsign", "softmax", "log_softmax", "exponential", "hard_sigmoid", "hard_silu", "hard_tanh", "squareplus",
    "tanh_shrink", "soft_shrink", "hard_shrink", "log_sigmoid", "sparse_plus", "glu",
)  # fmt: skip

_LAYERS: dict[str, Callable[[], Any]] = {
    "dense": dense,
    "einsum_dense": lambda: layers.EinsumDense("btc,cd->btd", (None, CHANNELS)),
    "conv1d": lambda: layers.Conv1D(16, 3, padding="same"),
    "conv1d_causal": lambda: layers.Conv1D(16, 3, padding="causal", dilation_rate=2),
    "conv1d_transpose": lambda: layers.Conv1DTranspose(8, 3, strides=2),
    "depthwise1d": lambda: layers.DepthwiseConv1D(3, padding="same"),
    "separable1d": lambda: layers.SeparableConv1D(16, 3, padding="same"),
    "conv2d": lambda: on_image(layers.Conv2D(16, 3, padding="same", activation="relu")),
    "conv2d_strided": lambda: on_image(layers.Conv2D(32, 3, strides=2, padding="same")),
    "conv2d_grouped": lambda: on_image(layers.Conv2D(16, 3, groups=4, padding="same")),
    "conv2d_transpose": lambda: on_image(layers.Conv2DTranspose(8, 3, strides=2, padding="same")),
    "depthwise2d": lambda: on_image(layers.DepthwiseConv2D(3, padding="same")),
    "separable2d": lambda: on_image(layers.SeparableConv2D(16, 3, padding="same")),
    "conv3d": lambda: on_image(layers.Conv3D(8, 2, padding="same"), depth=4),
    "max_pool1d": lambda: layers.MaxPooling1D(2),
    "max_pool2d": lambda: on_image(layers.MaxPooling2D(2)),
    "max_pool2d_overlapping": lambda: on_image(layers.MaxPooling2D(3, strides=1, padding="same")),
    "max_pool3d": lambda: on_image(layers.MaxPooling3D(2), depth=4),
    "average_pool2d": lambda: on_image(layers.AveragePooling2D(2)),
    "global_max": layers.GlobalMaxPooling1D,
    "global_average": layers.GlobalAveragePooling1D,
    "batch_norm": layers.BatchNormalization,
    "batch_norm_relu": lambda: keras.Sequential([layers.BatchNormalization(), layers.ReLU()]),
    "layer_norm": layers.LayerNormalization,
    "group_norm": lambda: layers.GroupNormalization(2),
    "rms_norm": layers.RMSNormalization,
    "unit_norm": layers.UnitNormalization,
    "spectral_norm": lambda: layers.SpectralNormalization(dense()),
    "multi_head_attention": lambda: Several(lambda x, a: a, Self(layers.MultiHeadAttention(2, 8))),
    "attention_dropout": lambda: Several(lambda x, a: a, Self(layers.MultiHeadAttention(2, 8, dropout=0.2))),
    "grouped_attention": lambda: Several(lambda x, a: a, Self(layers.GroupQueryAttention(8, 4, 2))),
    "luong_attention": lambda: Several(lambda x, q, v: layers.Attention()([q, v]), dense(), dense()),
    "additive_attention": lambda: Several(
        lambda x, q, v: layers.AdditiveAttention(use_scale=False)([q, v]), dense(), dense()
    ),
    "lstm": lambda: layers.LSTM(16, return_sequences=True),
    "gru": lambda: layers.GRU(16, return_sequences=True),
    "simple_rnn": lambda: layers.SimpleRNN(16, return_sequences=True),
    "bidirectional": lambda: layers.Bidirectional(layers.GRU(8)),
    "time_distributed": lambda: layers.TimeDistributed(dense("gelu")),
    "dropout": lambda: layers.Dropout(0.3, seed=SEED),
    "spatial_dropout": lambda: layers.SpatialDropout1D(0.3, seed=SEED),
    "gaussian_dropout": lambda: layers.GaussianDropout(0.3, seed=SEED),
    "gaussian_noise": lambda: layers.GaussianNoise(0.3, seed=SEED),
    "alpha_dropout": lambda: layers.AlphaDropout(0.3, seed=SEED),
    "prelu": layers.PReLU,
    "relu_with_slope": lambda: layers.ReLU(max_value=1.0, negative_slope=0.1, threshold=0.2),
    "leaky_relu_layer": lambda: layers.LeakyReLU(0.3),
    "softmax_layer": lambda: layers.Softmax(axis=1),
    "up_sampling": lambda: on_image(layers.UpSampling2D(2, interpolation="bilinear")),
    "padding_cropping": lambda: on_image(
        keras.Sequential([layers.ZeroPadding2D(2), layers.Cropping2D(1), layers.Permute((2, 1, 3))])
    ),
    "multiply": lambda: Several(lambda x, a, b: layers.Multiply()([a, b]), dense(), dense("tanh")),
    "subtract": lambda: Several(lambda x, a, b: layers.Subtract()([a, b]), dense(), dense()),
    "maximum": lambda: Several(lambda x, a, b: layers.Maximum()([a, b]), dense(), dense()),
    "average": lambda: Several(lambda x, a, b: layers.Average()([a, b]), dense("relu"), dense()),
    "concatenate": lambda: Several(lambda x, a, b: layers.Concatenate()([a, b]), dense("relu"), dense("silu")),
    "dot": lambda: Several(lambda x, a, b: layers.Dot(2)([a, b]), dense(), dense()),
    "normalized_dot": lambda: Several(lambda x, a, b: layers.Dot(2, normalize=True)([a, b]), dense(), dense()),
    "gated": lambda: Several(lambda x, a, b: a * b, dense("sigmoid"), dense()),
    "attention_by_hand": lambda: Several(lambda x, *parts: attention(*parts), dense(), dense(), dense()),
    "sharp_attention": lambda: Several(lambda x, *parts: attention(*parts, scale=2.5), dense(), dense(), dense()),
    "linear_attention": lambda: Several(lambda x, *parts: linear_attention(*parts), dense(), dense(), dense()),
    "cosine_similarity": lambda: Several(lambda x, a, b: similarity(a, b), dense(), dense()),
    "contrastive": lambda: Several(lambda x, a, b: tf.nn.log_softmax(10.0 * similarity(a, b)), dense(), dense()),
    "distance": lambda: Several(lambda x, a, b: tf.square(a - b), dense(), dense()),
    "two_readers": lambda: Several(lambda x, a, b: tf.tanh(a) + tf.sin(b) * x, dense(), dense()),
    "dynamic_weights": lambda: Several(lambda x, a, b: tf.matmul(a, tf.nn.softmax(b)), dense(), dense()),
}  # fmt: skip


class Self(layers.Layer):
    """An attention of a tensor to itself."""

    def __init__(self, attends: layers.Layer):
        super().__init__()
        self.attends = attends

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.attends(x, x)


_FUNCTIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "square": tf.square,
    "cube": lambda y: tf.pow(y, 3.0),
    "sine": tf.sin,
    "sine_cosine": lambda y: tf.sin(y) * tf.cos(2.0 * y),
    "exponential_of": lambda y: tf.exp(0.5 * y),
    "exponential_less_one": lambda y: tf.math.expm1(0.5 * y),
    "logarithm": lambda y: tf.math.log(1.0 + tf.square(y)),
    "logarithm_of_small": lambda y: tf.math.log(1e-3 + tf.abs(y)),
    "log1p": lambda y: tf.math.log1p(tf.exp(y)),
    "root": lambda y: tf.sqrt(1.0 + tf.square(y)),
    "root_of_small": lambda y: tf.sqrt(1e-4 + tf.square(y)),
    "inverse_root": lambda y: tf.math.rsqrt(0.1 + tf.square(y)),
    "reciprocal": lambda y: tf.math.reciprocal(2.0 + tf.sin(y)),
    "power": lambda y: tf.pow(0.5 + tf.abs(y), 1.5),
    "negative_power": lambda y: tf.pow(0.2 + tf.abs(y), -0.7),
    "softsign_by_hand": lambda y: y / (1.0 + tf.abs(y)),
    "over_length": lambda y: y / (tf.abs(y) + 1e-2),
    "over_two_channels": lambda y: (
        y[..., :2] * tf.math.rsqrt(tf.reduce_mean(y[..., :2] ** 2, -1, True) + 1e-6)
    ),
    "no_nan": lambda y: tf.math.divide_no_nan(tf.sin(y), tf.nn.relu(y)),
    "over_norm": lambda y: y / (tf.norm(y, axis=-1, keepdims=True) + 1e-3),
    "over_deviation": lambda y: (y - tf.reduce_mean(y, 1, True)) / (tf.math.reduce_std(y, 1, True) + 1e-3),
    "over_range": lambda y: (
        (y - tf.reduce_min(y, -1, True)) / (tf.reduce_max(y, -1, True) - tf.reduce_min(y, -1, True) + 0.1)
    ),
    "over_sum": lambda y: tf.nn.softplus(y) / tf.reduce_sum(tf.nn.softplus(y), -1, True),
    "softmax_by_hand": lambda y: tf.exp(y) / tf.reduce_sum(tf.exp(y), -1, True),
    "quotient_of_halves": lambda y: y[..., :8] / (0.3 + tf.square(y[..., 8:])),
    "absolute": tf.abs,
    "sign_times": lambda y: tf.sign(y) * tf.sqrt(tf.abs(y) + 0.1),
    "maximum_of_two": lambda y: tf.maximum(tf.sin(y), 0.3 * y),
    "minimum_of_two": lambda y: tf.minimum(y, 0.3 * tf.square(y)),
    "where": lambda y: tf.where(y > 0.1, tf.sin(y), 0.5 * tf.square(y)),
    "clip": lambda y: tf.clip_by_value(y, -0.5, 0.8),
    "clip_by_norm": lambda y: tf.clip_by_norm(y, 1.0, axes=[-1]),
    "relu_and_leaky": lambda y: tf.nn.relu(y) + tf.nn.leaky_relu(y, 0.3) * y,
    "leaky_of_relu": lambda y: tf.nn.leaky_relu(tf.nn.relu(y), 0.3) + tf.nn.relu(y) * y,
    "relu_by_hand_and_leaky": lambda y: relu_by_hand(y) + tf.nn.leaky_relu(y, 0.2) + y * y,
    "relu6_and_relu": lambda y: tf.nn.relu6(4.0 * y) * tf.nn.relu(y),
    "softmax": tf.nn.softmax,
    "softmax_sharp": lambda y: tf.nn.softmax(10.0 * y),
    "softmax_over_steps": lambda y: tf.nn.softmax(y, axis=1) * y,
    "log_sum_exp": lambda y: y - tf.reduce_logsumexp(y, -1, True),
    "entropy": lambda y: -tf.nn.softmax(y) * tf.nn.log_softmax(y),
    "cross_entropy": lambda y: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(y[:, :, ::-1]), y),
    "sigmoid_cross_entropy": lambda y: tf.nn.sigmoid_cross_entropy_with_logits(tf.sigmoid(y), y[:, ::-1]),
    "cumulative_sum": lambda y: tf.cumsum(y, 1) * 0.25,
    "cumulative_product": lambda y: tf.math.cumprod(1.0 + 0.1 * tf.tanh(y), -1),
    "cumulative_logsumexp": lambda y: tf.math.cumulative_logsumexp(y, -1),
    "reversed_rolled": lambda y: tf.roll(tf.reverse(y, [1]), 2, 1) * y,
    "gathered": lambda y: tf.gather(y, [3, 1, 1, 7], axis=1) * 2.0,
    "largest": lambda y: tf.math.top_k(y, 4).values,
    "sorted": lambda y: tf.sort(y, axis=-1) * tf.range(16.0) / 8.0,
    "reduce_max": lambda y: tf.reduce_max(tf.sin(y), 1, True) * y,
    "reduce_product": lambda y: tf.reduce_prod(1.0 + 0.1 * y, -1, True) * y,
    "segment_sum": lambda y: tf.math.unsorted_segment_sum(y, tf.zeros([8], tf.int32), 2),
    "variance": lambda y: tf.math.reduce_variance(y, -1, True) * y,
    "outer_product": lambda y: tf.einsum("btc,btd->bcd", y, tf.tanh(y)) / 16.0,
    "triple_product": lambda y: tf.einsum("btc,bsc,bsd->btd", y, y, tf.tanh(y)) / 32.0,
    "product_chain": lambda y: tf.matmul(tf.matmul(y, y), y, transpose_b=True) / 32.0,
    "gate_of_halves": lambda y: y[..., :8] * tf.sigmoid(y[..., 8:]),
    "scaled_by_mean": lambda y: y * tf.reduce_mean(tf.square(y), 1, True),
    "fourier": lambda y: tf.abs(tf.signal.rfft(y)) * 0.25,
    "convolution_of_itself": lambda y: tf.nn.conv1d(y, tf.tanh(y)[0, :3, :, None], 1, "SAME"),
    "patches": lambda y: tf.image.extract_patches(pixels(y), [1, 2, 2, 1], [1, 2, 2, 1], [1] * 4, "VALID"),
    "depth_to_space": lambda y: tf.nn.depth_to_space(pixels(y), 2) * 1.5,
    "resize_bilinear": lambda y: tf.image.resize(tf.sin(pixels(y)), [6, 6]),
    "resize_bicubic": lambda y: tf.image.resize(tf.sin(pixels(y)), [6, 6], "bicubic"),
    "resize_nearest": lambda y: tf.image.resize(tf.sin(pixels(y)), [8, 8], "nearest"),
    "response_normalization": lambda y: tf.nn.local_response_normalization(pixels(y), 2),
    "total_variation": lambda y: tf.abs(y[:, 1:] - y[:, :-1]),
    "error_function": lambda y: tf.math.erf(y) + tf.math.erfc(0.5 * y),
    "log_gamma": lambda y: tf.math.lgamma(1.5 + tf.square(y)),
    "digamma": lambda y: tf.math.digamma(1.5 + tf.square(y)),
    "arc_tangent": tf.atan,
    "arc_sine": lambda y: tf.asin(0.8 * tf.tanh(y)),
    "angle": lambda y: tf.atan2(y[..., :8], 1.0 + tf.square(y[..., 8:])),
    "hyperbolic": lambda y: tf.sinh(0.5 * y) / tf.cosh(0.5 * y[:, ::-1]),
    "arc_hyperbolic": lambda y: tf.asinh(y) + tf.acosh(1.5 + tf.square(y)),
    "x_log_x": lambda y: tf.math.xlogy(tf.sigmoid(y), tf.sigmoid(y)),
    "stopped": lambda y: tf.stop_gradient(tf.sin(y)) * y + y,
    "straight_through": lambda y: y + tf.stop_gradient(tf.round(y) - y),
    "recomputed": lambda y: tf.recompute_grad(lambda y: tf.sin(y) * y)(y),
    "mixed_precision": lambda y: tf.cast(
        tf.sin(tf.cast(y, tf.bfloat16)) * tf.cast(y, tf.bfloat16), tf.float32
    ),
    "whole_softmax": lambda y: ops.softmax(y, axis=-1) * ops.sigmoid(y),
    "ops_norm": lambda y: y / (ops.norm(y, axis=1, keepdims=True) + 0.1),
    "ops_statistics": lambda y: (
        (y - ops.mean(y, 1, keepdims=True)) / ops.sqrt(ops.var(y, 1, keepdims=True) + 0.1)
    ),
    "ops_logsumexp": lambda y: ops.logsumexp(y, axis=-1, keepdims=True) * y,
    "ops_tensordot": lambda y: ops.tensordot(y, ops.tanh(y[0]), axes=1) * 0.25,
    "ops_normalize": lambda y: ops.normalize(y, axis=-1),
    "ops_rotary": lambda y: ops.concatenate(
        [y[..., :8] * ops.cos(1.0) - y[..., 8:] * ops.sin(1.0), y[..., 8:] * ops.cos(1.0)], -1
    ),
    "ops_top_k": lambda y: ops.top_k(y, 3)[0],
    "ops_segment_max": lambda y: ops.segment_max(ops.reshape(y, (-1, 16)), ops.arange(128) // 4, 32),
    "ops_moments": lambda y: ops.moments(y, [1])[1],
    "inner_function": inner,
    "branch": lambda y: tf.cond(tf.reduce_mean(y) > 0.0, lambda: tf.tanh(y) * y, lambda: tf.sin(y) + y),
    "while_loop": loop,
    "map": lambda y: tf.map_fn(lambda part: tf.tanh(part) * part, y),
    "vectorized_map": lambda y: tf.vectorized_map(lambda part: tf.matmul(part, tf.tanh(part)), y) * 0.25,
    "switch": lambda y: tf.switch_case(tf.constant(1), [lambda: y, lambda: tf.sin(y) * y]),
    "trace": lambda y: tf.linalg.trace(gram(y))[:, None, None] * y * 0.1,
    "band_part": lambda y: tf.linalg.band_part(tf.matmul(y, y, transpose_b=True), 2, 0) * 0.25,
    "orthogonal_factor": lambda y: tf.linalg.qr(gram(y))[0],
    "triangular_factor": lambda y: tf.linalg.qr(gram(y))[1],
    "singular_values": lambda y: tf.linalg.svd(gram(y), compute_uv=False),
    "eigenvalues": lambda y: tf.linalg.eigvalsh(gram(y)),
    "inverse": lambda y: tf.linalg.inv(gram(y)),
    "inverse_of_any": lambda y: tf.linalg.inv(square(y)),
    "solve": lambda y: tf.linalg.solve(gram(y), y),
    "triangular_solve": lambda y: tf.linalg.triangular_solve(tf.linalg.cholesky(gram(y)), y),
    "cholesky": lambda y: tf.linalg.cholesky(gram(y)),
    "cholesky_solve": lambda y: tf.linalg.cholesky_solve(tf.linalg.cholesky(gram(y)), y),
    "log_determinant": lambda y: tf.linalg.logdet(gram(y)),
    "least_squares": lambda y: tf.linalg.lstsq(square(y), tf.sin(y), l2_regularizer=0.1),
    "matrix_power": lambda y: tf.matmul(square(y), tf.matmul(square(y), square(y))),
}
_NOT_UNDER_XLA: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "determinant": lambda y: tf.linalg.det(square(y)),
    "matrix_exponential": lambda y: tf.linalg.expm(0.2 * y),
    "pseudo_inverse": lambda y: tf.linalg.pinv(square(y)),
    "singular_vectors": lambda y: tf.linalg.svd(gram(y) + tf.linalg.diag(tf.range(16.0)))[1],
    "eigenvectors": lambda y: tf.linalg.eigh(gram(y) + tf.linalg.diag(tf.range(16.0)))[1],
    "dilation": lambda y: tf.nn.dilation2d(pixels(y), tf.zeros([2, 2, 16]), [1] * 4, "SAME", "NHWC", [1] * 4),
    "scan": lambda y: tf.scan(lambda state, part: tf.tanh(state + part), tf.transpose(y, [1, 0, 2])),
}

BLOCKS: dict[str, Block] = {
    **{f"dense_{name}": Block(lambda name=name: dense(name)) for name in ACTIVATIONS},  # type: ignore[misc]
    **{name: Block(make) for name, make in _LAYERS.items()},
    **{name: Block(lambda function=function: function) for name, function in _FUNCTIONS.items()},  # type: ignore[misc]
    **{
        name: Block(lambda function=function: function, lowers=False)  # type: ignore[misc]
        for name, function in _NOT_UNDER_XLA.items()
    },
}
