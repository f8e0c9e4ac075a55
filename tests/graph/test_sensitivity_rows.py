"""Every row of the table of sensitivity: what an error of that input does to the operation's result."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_comptrain import native
from tf_comptrain.graph import sensitivity

RNG = np.random.default_rng(0)
RAW = tf.raw_ops
EVERY = -1


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    """Without values near zero, where a ReLU's input is on neither side."""
    values = RNG.normal(size=shape)
    return (scale * (values + 0.1 * np.sign(values))).astype("float32")


def pair(operation):
    """Of two factors, or terms."""
    return operation, [normal(4, 6), normal(4, 6)]


WINDOW_2D = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
WINDOW_3D = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 2, 2, 2, 1], "padding": "VALID"}
PLANE, VOLUME = {"strides": [1, 1, 1, 1], "padding": "SAME"}, {"strides": [1] * 5, "padding": "SAME"}
IMAGES = normal(2, 4, 4, 3)
POOLED, ARGMAX = (t.numpy() for t in RAW.MaxPoolWithArgmax(input=IMAGES, **WINDOW_2D))
VOLUMES = normal(1, 4, 4, 4, 2)
POOLED_VOLUMES = RAW.MaxPool3D(input=VOLUMES, **WINDOW_3D).numpy()
BITS = RNG.integers(0, 256, 3, dtype=np.uint8)


def ours(name):
    return getattr(native.ops(), f"comptrain_{name}")


# (a function of the floating-point inputs, these inputs, the numbers that they have in the operation)
OPERATIONS = {
    "MatMul": (*pair(lambda a, b: RAW.MatMul(a=a, b=b, transpose_b=True)), (0, 1)),
    **{
        name: (*pair(lambda a, b, name=name: getattr(RAW, name)(x=a, y=b, adj_y=True)), (0, 1))
        for name in ("BatchMatMul", "BatchMatMulV2")
    },
    "BatchMatMulV3": (
        *pair(lambda a, b: RAW.BatchMatMulV3(x=a, y=b, Tout=tf.float32, adj_y=True)), (0, 1)),
    "Einsum": (*pair(lambda a, b: RAW.Einsum(inputs=[a, b], equation="ab,cb->ac")), (0, 1)),
    **{
        name: (*pair(lambda a, b, name=name: getattr(RAW, name)(x=a, y=b)), (0, 1))
        for name in ("Mul", "MulNoNan", "Add", "AddV2", "Sub", "RealDiv", "Div", "DivNoNan")
    },
    "Xdivy": (*pair(lambda a, b: RAW.Xdivy(x=a, y=b)), (0, 1)),
    "AddN": (*pair(lambda a, b: RAW.AddN(inputs=[a, b])), (0, 1)),
    "ConcatV2": (*pair(lambda a, b: RAW.ConcatV2(values=[a, b], axis=0)), (0, 1)),
    "Pack": (*pair(lambda a, b: RAW.Pack(values=[a, b])), (0, 1)),
    "Neg": (lambda a: RAW.Neg(x=a), [normal(4, 6)], (0,)),
    "Identity": (lambda a: RAW.Identity(input=a), [normal(4, 6)], (0,)),
    "IdentityN": (lambda a: RAW.IdentityN(input=[a])[0], [normal(4, 6)], (0,)),
    "Reshape": (lambda a: RAW.Reshape(tensor=a, shape=[24]), [normal(4, 6)], (0,)),
    "Transpose": (lambda a: RAW.Transpose(x=a, perm=[1, 0]), [normal(4, 6)], (0,)),
    "Sum": (lambda a: RAW.Sum(input=a, axis=[0]), [normal(4, 6)], (0,)),
    "Mean": (lambda a: RAW.Mean(input=a, axis=[0]), [normal(4, 6)], (0,)),
    "Cast": (lambda a: RAW.Cast(x=a, DstT=tf.float64), [normal(4, 6)], (0,)),
    "Tile": (lambda a: RAW.Tile(input=a, multiples=[2, 1]), [normal(4, 6)], (0,)),
    "BroadcastTo": (lambda a: RAW.BroadcastTo(input=a, shape=[2, 4, 6]), [normal(4, 6)], (0,)),
    "Slice": (lambda a: RAW.Slice(input=a, begin=[1, 1], size=[2, 2]), [normal(4, 6)], (0,)),
    "StridedSlice": (
        lambda a: RAW.StridedSlice(input=a, begin=[1, 1], end=[3, 5], strides=[1, 2]), [normal(4, 6)], (0,)),
    "Conv2D": (lambda a, b: RAW.Conv2D(input=a, filter=b, **PLANE), [normal(2, 4, 4, 3), normal(3, 3, 3, 2)], (0, 1)),
    "Conv3D": (lambda a, b: RAW.Conv3D(input=a, filter=b, **VOLUME), [VOLUMES, normal(2, 2, 2, 2, 2)], (0, 1)),
    "DepthwiseConv2dNative": (
        lambda a, b: RAW.DepthwiseConv2dNative(input=a, filter=b, **PLANE), [IMAGES, normal(3, 3, 3, 1)], (0, 1)),
    "Conv2DBackpropFilter": (
        lambda a, b: RAW.Conv2DBackpropFilter(input=a, filter_sizes=[3, 3, 3, 2], out_backprop=b, **PLANE),
        [IMAGES, normal(2, 4, 4, 2)], (0, 2)),
    "Conv2DBackpropInput": (
        lambda a, b: RAW.Conv2DBackpropInput(input_sizes=[2, 4, 4, 3], filter=a, out_backprop=b, **PLANE),
        [normal(3, 3, 3, 2), normal(2, 4, 4, 2)], (1, 2)),
    "Conv3DBackpropFilterV2": (
        lambda a, b: RAW.Conv3DBackpropFilterV2(input=a, filter_sizes=[2, 2, 2, 2, 2], out_backprop=b, **VOLUME),
        [VOLUMES, normal(1, 4, 4, 4, 2)], (0, 2)),
    "Conv3DBackpropInputV2": (
        lambda a, b: RAW.Conv3DBackpropInputV2(input_sizes=[1, 4, 4, 4, 2], filter=a, out_backprop=b, **VOLUME),
        [normal(2, 2, 2, 2, 2), normal(1, 4, 4, 4, 2)], (1, 2)),
    "DepthwiseConv2dNativeBackpropFilter": (
        lambda a, b: RAW.DepthwiseConv2dNativeBackpropFilter(
            input=a, filter_sizes=[3, 3, 3, 1], out_backprop=b, **PLANE),
        [IMAGES, normal(2, 4, 4, 3)], (0, 2)),
    "DepthwiseConv2dNativeBackpropInput": (
        lambda a, b: RAW.DepthwiseConv2dNativeBackpropInput(
            input_sizes=[2, 4, 4, 3], filter=a, out_backprop=b, **PLANE),
        [normal(3, 3, 3, 1), normal(2, 4, 4, 3)], (1, 2)),
    **{
        name: (*pair(lambda a, b, name=name: getattr(RAW, name)(y=a, dy=b)), (0, 1))
        for name in ("TanhGrad", "SigmoidGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "InvGrad")
    },
    **{
        name: (*pair(lambda a, b, name=name: getattr(RAW, name)(gradients=a, features=b)), (0, 1))
        for name in ("SoftplusGrad", "SoftsignGrad", "ReluGrad", "Relu6Grad", "LeakyReluGrad")
    },
    # Of their outputs, not of what they read.
    **{
        name: (
            lambda a, b, name=name: getattr(RAW, name)(gradients=a, outputs=b),
            [normal(4, 6), normal(4, 6, scale=0.3)], (0, 1))
        for name in ("EluGrad", "SeluGrad")
    },
    "ResizeBicubicGrad": (
        lambda a, b: RAW.ResizeBicubicGrad(grads=a, original_image=b), [normal(2, 8, 8, 3), IMAGES], (0, 1)),
    "ResizeBilinearGrad": (
        lambda a, b: RAW.ResizeBilinearGrad(grads=a, original_image=b), [normal(2, 8, 8, 3), IMAGES], (0, 1)),
    "MaxPoolGrad": (
        lambda a, b, dy: RAW.MaxPoolGrad(orig_input=a, orig_output=b, grad=dy, **WINDOW_2D),
        [IMAGES, POOLED, normal(*POOLED.shape)], (0, 1, 2)),
    "MaxPool3DGrad": (
        lambda a, b, dy: RAW.MaxPool3DGrad(orig_input=a, orig_output=b, grad=dy, **WINDOW_3D),
        [VOLUMES, POOLED_VOLUMES, normal(*POOLED_VOLUMES.shape)], (0, 1, 2)),
    "MaxPoolGradWithArgmax": (
        lambda a, dy, at: RAW.MaxPoolGradWithArgmax(input=a, grad=dy, argmax=at, **WINDOW_2D),
        [IMAGES, normal(*POOLED.shape), ARGMAX], (0, 1, 2)),
    "Select": (
        lambda c, a, b: RAW.Select(condition=c, x=a, y=b), [normal(4, 6) > 0, normal(4, 6), normal(4, 6)], (0, 1, 2)),
    "SelectV2": (
        lambda c, a, b: RAW.SelectV2(condition=c, t=a, e=b), [normal(4, 6) > 0, normal(4, 6), normal(4, 6)], (0, 1, 2)),
    "FusedBatchNormGradV3": (
        lambda dy, x, scale, mean, variance: RAW.FusedBatchNormGradV3(
            y_backprop=dy, x=x, scale=scale, reserve_space_1=mean, reserve_space_2=variance, reserve_space_3=[0.0])[0],
        [normal(2, 4, 4, 3), IMAGES, normal(3), IMAGES.mean((0, 1, 2)), IMAGES.var((0, 1, 2))], (0, 1, 2, 3, 4)),
    "Comptrain>LayerNormGrad": (
        lambda x, dy, gamma: ours("layer_norm_grad")(x, dy, gamma, epsilon=1e-3)[0],
        [normal(4, 6), normal(4, 6), normal(6)], (0, 1, 2)),
    "Comptrain>GeluGrad": (lambda x, dy: ours("gelu_grad")(x, dy), [normal(4, 6), normal(4, 6)], (0, 1)),
    "Comptrain>SiluGrad": (lambda x, dy: ours("silu_grad")(x, dy), [normal(4, 6), normal(4, 6)], (0, 1)),
    "Comptrain>BitmaskGrad": (lambda bits, dy: ours("bitmask_grad")(bits, dy), [BITS, normal(4, 6)], (0, 1)),
    "Comptrain>MaxPoolGrad": (
        lambda at, dy: ours("max_pool_grad")(at, dy, [2, 4, 4, 3], ksize=[2, 2], strides=[2, 2]),
        [ours("max_pool")(IMAGES, ksize=[2, 2], strides=[2, 2])[1].numpy(), normal(*POOLED.shape)], (0, 1)),
}  # fmt: skip
WINDOWS = {"MaxPoolGrad": (0, 1), "MaxPool3DGrad": (0, 1), "MaxPoolGradWithArgmax": (0,)}
# The CPU finds the maximum in the input, or is given its place.
UNREAD = {("MaxPoolGrad", 1), ("MaxPoolGradWithArgmax", 0)}
# FusedBatchNormGradV3's last input is what cuDNN holds; the CPU does not read it.
NOT_HERE = {("FusedBatchNormGradV3", 5)}


def rows() -> list[tuple[str, int, str]]:
    """(operation, number of the input, what the table says); of "every input" one for each."""
    found = []
    for name, needs in sensitivity.table().items():
        numbers = (
            OPERATIONS[name][2] if EVERY in needs else [n for n in needs if n in (*OPERATIONS[name][2], 5)]
        )
        found += [(name, n, sensitivity.reads(name, n)) for n in numbers if (name, n) not in NOT_HERE]
    return found


def test_every_operation_of_the_table_is_here():
    assert set(OPERATIONS) == set(sensitivity.table())


def result(name: str, number: int, value: np.ndarray) -> np.ndarray:
    """The operation's, with another value of one input."""
    function, inputs, numbers = OPERATIONS[name]
    found = [tf.constant(value if n == number else x) for n, x in zip(numbers, inputs)]
    return np.asarray(function(*found), np.float64)


def far(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize(("name", "number", "need"), rows())
def test_an_error_does_what_the_table_says(name, number, need):
    _, inputs, numbers = OPERATIONS[name]
    value = inputs[numbers.index(number)]
    plain = result(name, number, value)
    if need == sensitivity.EXACT:  # it is read, and no error of it is known to be small
        other = ~value if value.dtype == bool else value + np.ones_like(value)
        assert far(result(name, number, other), plain) > 0.01
    elif need == sensitivity.UNBOUNDED:
        ends = [np.abs(result(name, number, np.full_like(value, x))).max() for x in (1e-3, 1.0, 1e3)]
        assert max(ends) > 100 * ends[1]
    elif need == sensitivity.SIZE:
        np.testing.assert_array_equal(result(name, number, value + 1), plain)
    elif need == sensitivity.SIGN:
        np.testing.assert_array_equal(
            result(name, number, np.where(value > 0, 3.0, -2.0).astype("f4")), plain
        )
        assert far(result(name, number, -value), plain) > 0.1
    elif need == sensitivity.WINDOW:
        # The order within a window is all that is read of the values: another of the same order does as well.
        function, *_ = OPERATIONS[name]
        windows = [
            2 * x + 1 if x.dtype == np.float32 and n in (0, 1) and n in WINDOWS[name] else x
            for n, x in zip(numbers, inputs)
        ]
        np.testing.assert_array_equal(function(*map(tf.constant, windows)), plain)
        reads = far(result(name, number, np.flip(value, 1)), plain) > 0.1
        assert reads or (name, number) in UNREAD
    else:
        error = RNG.uniform(-0.01, 0.01, value.shape).astype("f4")
        once = result(name, number, value + error) - plain
        twice = result(name, number, value + 2 * error) - plain
        assert np.linalg.norm(once) > 0
        # In proportion, where the operation is linear in it; nearly so, where it is smooth.
        exact = need in (sensitivity.LINEAR, sensitivity.CONVOLUTION)
        assert far(twice, 2 * once) < (1e-3 if exact else 0.1)
        assert np.linalg.norm(once) < 0.1 * np.linalg.norm(plain)
