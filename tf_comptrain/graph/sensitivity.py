"""What an operation of the backward pass does with an error in a tensor of the forward pass.

An operation of the backward pass either takes an incoming gradient (a *gradient operation*: MatMul of
dy with the input of a dense layer), or makes a factor of one from forward tensors alone (1 - y^2). For
the first kind `reads` says what it needs of each input; the second kind computes values as the forward
pass does, and `carries` says whether an error stays bounded on its way through.
"""

from __future__ import annotations

# What a gradient operation needs of an input that is no gradient.
LINEAR = "linear"  # a factor of a gradient: an error of the input is one of the result, in proportion
CONVOLUTION = "convolution"  # likewise, of the gradient of a convolution's kernel
NORM = "norm"  # the input of a normalization
NONLINEAR = "nonlinear"  # the argument of a derivative: an error travels upstream
SIGN = "sign"  # whether it lies within limits: one bit
WINDOW = "window"  # where in its window the maximum was
SIZE = "size"  # its shape alone
EXACT = "exact"  # its very value; no error is small
UNBOUNDED = "unbounded"  # a divisor, or what has a gradient without bound
UNKNOWN = "unknown"  # not in this table

NO_ERROR = frozenset((WINDOW, EXACT, UNBOUNDED, UNKNOWN))

# Operations of a shape, whatever the values are.
SHAPE_ONLY = frozenset(("Rank", "Shape", "ShapeN", "Size"))

_EVERY = -1  # input number for those that are not listed

_READS: dict[str, dict[int, str]] = {
    **dict.fromkeys(
        ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Mul", "MulNoNan"),
        {_EVERY: LINEAR},
    ),
    # A transposed convolution's gradients are convolutions.
    **dict.fromkeys(("Conv2D", "Conv3D", "DepthwiseConv2dNative"), {_EVERY: CONVOLUTION}),
    # A forward tensor that is added to a gradient is a part of it (a penalty on activations).
    **dict.fromkeys(("Add", "AddV2", "AddN", "Sub", "Neg", "Identity", "IdentityN"), {_EVERY: LINEAR}),
    **dict.fromkeys(("Reshape", "Transpose", "Sum", "Mean", "Cast", "Tile", "BroadcastTo"), {0: LINEAR}),
    **dict.fromkeys(("ConcatV2", "Pack", "Slice", "StridedSlice"), {_EVERY: LINEAR}),
    **dict.fromkeys(("RealDiv", "Div", "DivNoNan", "Xdivy"), {0: LINEAR, 1: UNBOUNDED}),
    **dict.fromkeys(
        ("Conv2DBackpropFilter", "Conv2DBackpropInput", "Conv3DBackpropFilterV2", "Conv3DBackpropInputV2",
         "DepthwiseConv2dNativeBackpropFilter", "DepthwiseConv2dNativeBackpropInput"),
        {0: CONVOLUTION, 1: CONVOLUTION, 2: CONVOLUTION},
    ),
    **dict.fromkeys(("TanhGrad", "SigmoidGrad"), {0: NONLINEAR}),
    **dict.fromkeys(("SoftplusGrad", "SoftsignGrad", "EluGrad", "SeluGrad"), {1: NONLINEAR}),
    **dict.fromkeys(("ReluGrad", "Relu6Grad", "LeakyReluGrad"), {1: SIGN}),
    **dict.fromkeys(("ResizeBicubicGrad", "ResizeBilinearGrad"), {1: SIZE}),
    **dict.fromkeys(("MaxPoolGrad", "MaxPool3DGrad"), {0: WINDOW, 1: WINDOW}),
    "MaxPoolGradWithArgmax": {0: WINDOW, 2: WINDOW},
    **dict.fromkeys(("SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "InvGrad"), {0: UNBOUNDED}),
    **dict.fromkeys(("Select", "SelectV2"), {0: EXACT, 1: LINEAR, 2: LINEAR}),
    "FusedBatchNormGradV3": {1: NORM, 2: EXACT, 3: EXACT, 4: EXACT, 5: EXACT},
    "Comptrain>LayerNormGrad": {0: NORM, 2: EXACT},
    **dict.fromkeys(("Comptrain>GeluGrad", "Comptrain>SiluGrad"), {0: NONLINEAR}),
    **dict.fromkeys(("Comptrain>BitmaskGrad", "Comptrain>MaxPoolGrad"), {0: EXACT}),
}  # fmt: skip

# Operations through which an error of the inputs stays in proportion, so that what they make may be
# rebuilt from restored inputs. All are elementwise, or reductions, or move values about: cheap.
_SMOOTH = frozenset(
    ("Add", "AddN", "AddV2", "BatchToSpaceND", "BiasAdd", "BroadcastTo", "Cast", "Comptrain>Gelu",
     "Comptrain>Silu", "ConcatV2", "Cos",
     "DepthToSpace", "Elu", "Erf", "Erfc", "Exp", "ExpandDims", "Expm1", "GatherNd", "GatherV2", "Identity",
     "IdentityN", "LeakyRelu", "Max", "Maximum", "Mean", "Min", "Minimum", "MirrorPad", "Mul", "MulNoNan",
     "Neg", "OnesLike", "Pack", "Pad", "PadV2", "PreventGradient", "Relu", "Relu6", "Reshape", "Select",
     "SelectV2", "Selu", "Sigmoid", "Sin", "Slice", "Snapshot", "Softmax", "Softplus", "Softsign",
     "SpaceToBatchND", "SpaceToDepth", "Split", "SplitV", "Square", "SquaredDifference", "Squeeze",
     "StopGradient", "StridedSlice", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Unpack", "ZerosLike")
)  # fmt: skip
# As cheap, but a small error of these inputs may become any: they have to be exact.
_STEEP: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("RealDiv", "Div", "DivNoNan", "Xdivy"), (1,)),
    **dict.fromkeys(("Rsqrt", "Sqrt", "Reciprocal", "Inv", "Log", "Log1p", "Tan", "Erfinv"), (0,)),
    "Pow": (0, 1),
    **dict.fromkeys(
        ("Abs", "Ceil", "Equal", "Floor", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "IsFinite",
         "IsInf", "IsNan", "Less", "LessEqual", "Mod", "NotEqual", "Rint", "Round", "Sign"),
        (0, 1),
    ),
    **dict.fromkeys(("LogicalAnd", "LogicalNot", "LogicalOr"), (0, 1)),
    **dict.fromkeys(("Fill", "Range", "MatrixBandPart"), (0, 1, 2)),
}  # fmt: skip

# What is made by dividing by an input, or by its root, has no bound where that input is near zero.
_NEAR_ZERO = {
    **dict.fromkeys(("RealDiv", "Div", "DivNoNan", "Xdivy"), 1),
    **dict.fromkeys(("Reciprocal", "Inv", "Rsqrt", "Pow", "SqrtGrad"), 0),
}
# Nor has what these make, whatever they read: inverses of matrices, and what has poles.
WITHOUT_BOUND = frozenset(
    ("BandedTriangularSolve", "Cholesky", "CholeskyGrad", "Digamma", "Eig", "Erfinv", "LogMatrixDeterminant", "Lu",
     "MatrixDeterminant", "MatrixInverse", "MatrixLogarithm", "MatrixSolve", "MatrixSolveLs", "MatrixSquareRoot",
     "MatrixTriangularSolve", "Ndtri", "Polygamma", "Qr", "SelfAdjointEigV2", "Svd", "Tan", "TridiagonalSolve", "Zeta")
)  # fmt: skip
# Gradients that go through logarithms, as that of cumulative_logsumexp: what is added there is a factor's exponent.
NOT_LINEAR = frozenset(("CumulativeLogsumexp", "Exp", "Expm1", "Log", "Log1p"))
# Bounded whatever they read.
SATURATING = frozenset(("Cos", "Erf", "Sigmoid", "Sign", "Sin", "Softmax", "Softsign", "Tanh"))


def table() -> dict[str, dict[int, str]]:
    """By type of a gradient operation: what it needs of each of its inputs; -1 stands for those not listed."""
    return _READS


def reads(op_type: str, index: int) -> str:
    """What a gradient operation needs of its input number `index`."""
    row = _READS.get(op_type, {})
    return row.get(index, row.get(_EVERY, UNKNOWN))


def is_cheap(op_type: str) -> bool:
    """Whether the backward pass may run a forward operation of that type again."""
    return op_type in _SMOOTH or op_type in _STEEP


def steep_inputs(op_type: str) -> tuple[int, ...]:
    """Inputs of a cheap operation that have to be exact."""
    return _STEEP.get(op_type, ())


def argument_near_zero(op_type: str) -> int | None:
    """The input near whose zero what an operation makes grows without bound; None where there is none."""
    return _NEAR_ZERO.get(op_type)
