"""An operation of each type of the table, with inputs that show what it does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_comptrain import native

RNG = np.random.default_rng(0)
RAW = tf.raw_ops


class Sample(NamedTuple):
    """An operation.

    Attributes:
      function: Of the values below, in order.
      values: Tensors that its gradient may read: numbers and truth values, no axes or sizes.
      numbers: Those of the values among the operation's inputs.
    """

    function: Callable[..., Any]
    values: tuple[np.ndarray, ...]
    numbers: tuple[int, ...]


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    """Without values near zero, where a ReLU's input is on neither side."""
    values = RNG.normal(size=shape)
    return (scale * (values + 0.1 * np.sign(values))).astype("float32")


def bits(values: tf.Tensor) -> tf.Tensor:
    return RAW.Bitcast(input=values, type=tf.int32)


def inside(*shape: int) -> np.ndarray:
    """Between 0.2 and 0.9, where logarithms, roots and inverses are smooth."""
    return RNG.uniform(0.2, 0.9, shape).astype("float32")


def sample(
    function: Callable[..., Any], *values: np.ndarray, numbers: tuple[int, ...] | None = None
) -> Sample:
    return Sample(function, values, tuple(range(len(values))) if numbers is None else numbers)


def named(names: str, values: Callable[[], tuple], *keywords: str, **attributes: Any) -> dict[str, Sample]:
    """Operations that take values by these keywords."""

    def of(name: str) -> Sample:
        raw = getattr(RAW, name)
        return sample(lambda *given: raw(**dict(zip(keywords, given)), **attributes), *values())

    return {name: of(name) for name in names.split()}


def ours(name: str) -> Any:
    return getattr(native.ops(), f"comptrain_{name}")


def one() -> tuple:
    return (normal(4, 6),)


def two() -> tuple:
    return normal(4, 6), normal(4, 6)


def smooth() -> tuple:
    return (inside(4, 6),)


def apart() -> tuple:
    """No two that small errors would change the order of."""
    values = normal(4, 6)
    return values, values + normal(4, 6)


def truths() -> tuple:
    return normal(4, 6) > 0, normal(4, 6) > 0


WINDOW_2D = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
WINDOW_3D = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "VALID"}
PLANE, VOLUME = {"strides": [1, 1, 1, 1], "padding": "SAME"}, {"strides": [1] * 5, "padding": "SAME"}
IMAGES, VOLUMES = normal(2, 4, 4, 3), normal(3, 4, 4, 4, 2)
POOLED, ARGMAX = (t.numpy() for t in RAW.MaxPoolWithArgmax(input=IMAGES, **WINDOW_2D))
POOLED_VOLUMES = RAW.MaxPool3D(input=VOLUMES, **WINDOW_3D).numpy()
PROBABILITIES = RAW.Softmax(logits=normal(4, 6)).numpy()
FIRST = {"axis": [0], "keep_dims": True}
MEAN, VARIANCE = IMAGES.mean((0, 1, 2)), IMAGES.var((0, 1, 2))

# What works along an axis works along the first, if it may.
SAMPLES: dict[str, Sample] = {
    # Hand values on
    **named("Identity PreventGradient Snapshot StopGradient", one, "input"),
    "EnsureShape": sample(lambda a: RAW.EnsureShape(input=a, shape=[4, 6]), normal(4, 6)),
    "IdentityN": sample(lambda a: RAW.IdentityN(input=[a])[0], normal(4, 6)),
    "ExpandDims": sample(lambda a: RAW.ExpandDims(input=a, axis=1), normal(4, 6)),
    "Reshape": sample(lambda a: RAW.Reshape(tensor=a, shape=[24]), normal(4, 6)),
    "Squeeze": sample(lambda a: RAW.Squeeze(input=a, axis=[1]), normal(4, 1, 6)),
    "Transpose": sample(lambda a: RAW.Transpose(x=a, perm=[1, 0]), normal(4, 6)),
    "Tile": sample(lambda a: RAW.Tile(input=a, multiples=[2, 1]), normal(4, 6)),
    "BroadcastTo": sample(lambda a: RAW.BroadcastTo(input=a, shape=[2, 4, 6]), normal(4, 6)),
    "GatherNd": sample(lambda a: RAW.GatherNd(params=a, indices=[[0], [2], [2]]), normal(4, 6)),
    "GatherV2": sample(lambda a: RAW.GatherV2(params=a, indices=[0, 2, 2], axis=0), normal(4, 6)),
    "SplitV": sample(lambda a: RAW.SplitV(value=a, size_splits=[1, 3], axis=0, num_split=2)[0], normal(4, 6)),
    "Split": sample(lambda a: RAW.Split(axis=0, value=a, num_split=2)[0], normal(4, 6), numbers=(1,)),
    "Unpack": sample(lambda a: RAW.Unpack(value=a, num=4)[0], normal(4, 6)),
    "Slice": sample(lambda a: RAW.Slice(input=a, begin=[1, 1], size=[2, 2]), normal(4, 6)),
    "StridedSlice": sample(
        lambda a: RAW.StridedSlice(input=a, begin=[1, 1], end=[3, 5], strides=[1, 2]), normal(4, 6)),
    **named("DepthToSpace", lambda: (normal(2, 4, 4, 8),), "input", block_size=2),
    **named("SpaceToDepth", lambda: (IMAGES,), "input", block_size=2),
    "BatchToSpaceND": sample(
        lambda a: RAW.BatchToSpaceND(input=a, block_shape=[2, 2], crops=[[0, 0], [0, 1]]), normal(8, 2, 2, 3)),
    "SpaceToBatchND": sample(
        lambda a: RAW.SpaceToBatchND(input=a, block_shape=[2, 2], paddings=[[0, 0], [0, 0]]), IMAGES),
    "ConcatV2": sample(lambda a, b: RAW.ConcatV2(values=[a, b], axis=0), *two()),
    "Pack": sample(lambda a, b: RAW.Pack(values=[a, b]), *two()),
    **named("Pad", one, "input", paddings=[[1, 1], [0, 0]]),
    **named("PadV2", one, "input", paddings=[[1, 1], [0, 0]], constant_values=0.0),
    **named("MirrorPad", one, "input", paddings=[[1, 1], [0, 0]], mode="REFLECT"),
    "MatrixBandPart": sample(lambda a: RAW.MatrixBandPart(input=a, num_lower=1, num_upper=0), normal(4, 6)),
    **named("OnesLike ZerosLike", one, "x"),
    "Fill": sample(lambda a: RAW.Fill(dims=[3], value=a), np.float32(2.0), numbers=(1,)),
    # Elementwise arithmetic
    **named("Add AddV2 Sub Mul MulNoNan Div DivNoNan RealDiv Xdivy SquaredDifference", two, "x", "y"),
    **named("Maximum Minimum", apart, "x", "y"),
    "Pow": sample(lambda a, b: RAW.Pow(x=a, y=b), inside(4, 6) + 1, normal(4, 6)),
    "AddN": sample(lambda a, b: RAW.AddN(inputs=[a, b]), *two()),
    "BiasAdd": sample(lambda a, b: RAW.BiasAdd(value=a, bias=b), normal(4, 6), normal(6)),
    "Neg": sample(lambda a: RAW.Neg(x=a), normal(4, 6)),
    "Cast": sample(lambda a: RAW.Cast(x=a, DstT=tf.float64), normal(4, 6)),
    "Select": sample(lambda c, a, b: RAW.Select(condition=c, x=a, y=b), normal(4, 6) > 0, *two()),
    "SelectV2": sample(lambda c, a, b: RAW.SelectV2(condition=c, t=a, e=b), normal(4, 6) > 0, *two()),
    **named("FloorDiv FloorMod Greater GreaterEqual Less LessEqual Mod", two, "x", "y"),
    **named("Equal NotEqual", lambda: 2 * one(), "x", "y"),
    **named("LogicalAnd LogicalOr", truths, "x", "y"),
    "Bitcast": sample(lambda a: bits(a), normal(4, 6)),
    **{
        name: sample(lambda a, b, name=name: getattr(RAW, name)(x=bits(a), y=bits(b)), *two())
        for name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    },
    **named("LogicalNot", lambda: truths()[:1], "x"),
    **named("Ceil Floor IsFinite IsInf IsNan Rint Round Sign", one, "x"),
    # Elementwise functions
    **named("Relu Relu6 LeakyRelu Elu Selu Softplus Softsign", one, "features"),
    **named("Sigmoid Tanh Square Abs Exp Expm1 Cos Sin Erf Erfc", one, "x"),
    **named("Sqrt Rsqrt Reciprocal Inv Log Log1p Tan Erfinv", smooth, "x"),
    **named("TanhGrad SigmoidGrad SqrtGrad RsqrtGrad ReciprocalGrad InvGrad", two, "y", "dy"),
    **named("SoftplusGrad SoftsignGrad ReluGrad Relu6Grad LeakyReluGrad", two, "gradients", "features"),
    **named("EluGrad SeluGrad", lambda: (normal(4, 6), normal(4, 6, scale=0.3)), "gradients", "outputs"),
    **{
        f"Comptrain>{name.capitalize()}": sample(ours(name), normal(4, 6))
        for name in ("gelu", "silu")
    },
    **{
        f"Comptrain>{name.capitalize()}Grad": sample(ours(f"{name}_grad"), *two())
        for name in ("gelu", "silu")
    },
    "Comptrain>BitmaskGrad": sample(
        lambda bits, dy: ours("bitmask_grad")(bits, dy), RNG.integers(0, 256, 3, dtype=np.uint8), normal(4, 6)),
    # Along axes
    **named("Sum Mean Max Min", one, "input", **FIRST),
    **named("ArgMax ArgMin", one, "input", dimension=0),
    "L2Loss": sample(lambda a: RAW.L2Loss(t=a), normal(4, 6)),
    "Cumsum": sample(lambda a: RAW.Cumsum(x=a, axis=0), normal(4, 6)),
    "ReverseV2": sample(lambda a: RAW.ReverseV2(tensor=a, axis=[0]), normal(4, 6)),
    "Roll": sample(lambda a: RAW.Roll(input=a, shift=[1], axis=[0]), normal(4, 6)),
    **named("Softmax LogSoftmax", one, "logits"),
    "SoftmaxCrossEntropyWithLogits": sample(
        lambda a, b: RAW.SoftmaxCrossEntropyWithLogits(features=a, labels=b), normal(4, 6), PROBABILITIES),
    "SparseSoftmaxCrossEntropyWithLogits": sample(
        lambda a: RAW.SparseSoftmaxCrossEntropyWithLogits(features=a, labels=[0, 1, 2, 3]), normal(4, 6)),
    # Products
    "MatMul": sample(lambda a, b: RAW.MatMul(a=a, b=b, transpose_b=True), *two()),
    **named("BatchMatMul BatchMatMulV2", lambda: (normal(2, 4, 6), normal(2, 4, 6)), "x", "y", adj_y=True),
    **named("BatchMatMulV3", lambda: (normal(2, 4, 6), normal(2, 4, 6)), "x", "y", Tout=tf.float32, adj_y=True),
    "Einsum": sample(lambda a, b: RAW.Einsum(inputs=[a, b], equation="ab,cb->ac"), *two()),
    "Conv2D": sample(lambda a, b: RAW.Conv2D(input=a, filter=b, **PLANE), IMAGES, normal(3, 3, 3, 2)),
    "Conv3D": sample(lambda a, b: RAW.Conv3D(input=a, filter=b, **VOLUME), VOLUMES, normal(2, 2, 2, 2, 2)),
    "DepthwiseConv2dNative": sample(
        lambda a, b: RAW.DepthwiseConv2dNative(input=a, filter=b, **PLANE), IMAGES, normal(3, 3, 3, 1)),
    "Conv2DBackpropFilter": sample(
        lambda a, b: RAW.Conv2DBackpropFilter(input=a, filter_sizes=[3, 3, 3, 2], out_backprop=b, **PLANE),
        IMAGES, normal(2, 4, 4, 2), numbers=(0, 2)),
    "Conv2DBackpropInput": sample(
        lambda a, b: RAW.Conv2DBackpropInput(input_sizes=[2, 4, 4, 3], filter=a, out_backprop=b, **PLANE),
        normal(3, 3, 3, 2), normal(2, 4, 4, 2), numbers=(1, 2)),
    "Conv3DBackpropFilterV2": sample(
        lambda a, b: RAW.Conv3DBackpropFilterV2(input=a, filter_sizes=[2] * 5, out_backprop=b, **VOLUME),
        VOLUMES, normal(3, 4, 4, 4, 2), numbers=(0, 2)),
    "Conv3DBackpropInputV2": sample(
        lambda a, b: RAW.Conv3DBackpropInputV2(input_sizes=[3, 4, 4, 4, 2], filter=a, out_backprop=b, **VOLUME),
        normal(2, 2, 2, 2, 2), normal(3, 4, 4, 4, 2), numbers=(1, 2)),
    "DepthwiseConv2dNativeBackpropFilter": sample(
        lambda a, b: RAW.DepthwiseConv2dNativeBackpropFilter(
            input=a, filter_sizes=[3, 3, 3, 1], out_backprop=b, **PLANE),
        IMAGES, normal(2, 4, 4, 3), numbers=(0, 2)),
    "DepthwiseConv2dNativeBackpropInput": sample(
        lambda a, b: RAW.DepthwiseConv2dNativeBackpropInput(
            input_sizes=[2, 4, 4, 3], filter=a, out_backprop=b, **PLANE),
        normal(3, 3, 3, 1), normal(2, 4, 4, 3), numbers=(1, 2)),
    "BiasAddGrad": sample(lambda a: RAW.BiasAddGrad(out_backprop=a), normal(4, 6)),
    # Normalizations
    "FusedBatchNormV3": sample(
        lambda x, gamma: RAW.FusedBatchNormV3(x=x, scale=gamma, offset=[0.0] * 3, mean=[], variance=[]),
        IMAGES, normal(3)),
    "FusedBatchNormGradV3": sample(
        lambda dy, x, scale, mean, variance: RAW.FusedBatchNormGradV3(
            y_backprop=dy, x=x, scale=scale, reserve_space_1=mean, reserve_space_2=variance, reserve_space_3=[0.0])[0],
        normal(2, 4, 4, 3), IMAGES, normal(3), MEAN, VARIANCE),
    "Comptrain>LayerNorm": sample(lambda x: ours("layer_norm")(x, epsilon=1e-3)[0], normal(4, 6)),
    "Comptrain>LayerNormAffine": sample(
        lambda x_norm, gamma, beta, inv_std: ours("layer_norm_affine")(x_norm, gamma, beta, inv_std),
        normal(4, 6), normal(6), normal(6), np.exp(normal(4))),
    "Comptrain>LayerNormGrad": sample(
        lambda x_norm, dy, gamma, inv_std: ours("layer_norm_grad")(x_norm, dy, gamma, inv_std)[0],
        *two(), normal(6), np.exp(normal(4))),
    # Images
    "AvgPool": sample(lambda a: RAW.AvgPool(value=a, **WINDOW_2D), IMAGES),
    "AvgPool3D": sample(lambda a: RAW.AvgPool3D(input=a, **WINDOW_3D), VOLUMES),
    "MaxPool": sample(lambda a: RAW.MaxPool(input=a, **WINDOW_2D), IMAGES),
    "MaxPool3D": sample(lambda a: RAW.MaxPool3D(input=a, **WINDOW_3D), VOLUMES),
    "MaxPoolWithArgmax": sample(lambda a: RAW.MaxPoolWithArgmax(input=a, **WINDOW_2D), IMAGES),
    "MaxPoolGrad": sample(
        lambda a, b, dy: RAW.MaxPoolGrad(orig_input=a, orig_output=b, grad=dy, **WINDOW_2D),
        IMAGES, POOLED, normal(*POOLED.shape)),
    "MaxPool3DGrad": sample(
        lambda a, b, dy: RAW.MaxPool3DGrad(orig_input=a, orig_output=b, grad=dy, **WINDOW_3D),
        VOLUMES, POOLED_VOLUMES, normal(*POOLED_VOLUMES.shape)),
    "MaxPoolGradWithArgmax": sample(
        lambda a, dy, at: RAW.MaxPoolGradWithArgmax(input=a, grad=dy, argmax=at, **WINDOW_2D),
        IMAGES, normal(*POOLED.shape), ARGMAX),
    "Comptrain>MaxPoolGrad": sample(
        lambda at, dy: ours("max_pool_grad")(at, dy, [2, 4, 4, 3], ksize=[2, 2], strides=[2, 2]),
        ours("max_pool")(IMAGES, ksize=[2, 2], strides=[2, 2])[1].numpy(), normal(*POOLED.shape)),
    **named("ResizeBicubic ResizeBilinear ResizeNearestNeighbor", lambda: (IMAGES,), "images", size=[8, 8]),
    **named("ResizeBicubicGrad ResizeBilinearGrad", lambda: (normal(2, 8, 8, 3), IMAGES), "grads", "original_image"),
    "Comptrain>TanhGelu": sample(ours("tanh_gelu"), normal(4, 6)),
    "Comptrain>TanhGeluGrad": sample(ours("tanh_gelu_grad"), *two()),
}  # fmt: skip
