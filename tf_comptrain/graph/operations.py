"""What holds of each type of operation: one row for each, which everything else asks.

A row says what the gradient of the operation reads, and what the operation itself needs of a forward tensor where it
hands a gradient on. `tests/graph/test_table_of_operations.py` holds every row against the operation, and goes through
TensorFlow's whole registry. What is not in the table is kept as it is.

To find what the gradient of Selu needs, look for "Selu": its output, as the argument of a derivative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

# What a gradient needs of a tensor.
LINEAR = "linear"  # a factor of a gradient: an error of the tensor is one of the result, in proportion
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

# How an error passes through an operation that runs again; LINEAR is the other way.
SMOOTH = "smooth"  # it stays bounded, but for inputs that have to be exact

# Kinds of operations.
ALIAS, ALIASES = "alias", "aliases"  # its output is its input; each output is the input of that number
PASSED = "passed"  # the first output is the first input
VIEW = "view"  # the values of the first input in another shape, in the same buffer
MOVE = "move"  # the values of the first input in another order
REPEAT = "repeat"  # the values of the first input, several times
PART = "part"  # some of the values of the first input, or in another order
JOIN = "join"  # values of several inputs, or with constants around them
ELEMENTWISE = "elementwise"
ADDITION = "addition"  # elementwise, a sum of its inputs
SUMMATION = "summation"  # a sum or mean along axes
REDUCTION = "reduction"  # anything else along axes
MATRIX_PRODUCT = "matrix product"
CONVOLUTIONAL = "convolutional"  # a convolution, or the gradient of its input
KERNEL_GRADIENT = "kernel gradient"  # of a convolution
SHAPE = "shape"  # whatever the values are
SOURCE = "source"  # there anyway: weights, constants, the batch
BLANK = "blank"  # made of a shape
RANDOM = "random"
LOSS = "loss"  # of each row, and beside it its gradient

# Axes along which its rows are independent: a row of the result needs that row of what it reads, and no other.
EVERY_AXIS = "every"
ALL_BUT_LAST = "all but the last"
OTHER_AXES = "all but those it works along"
ROWS_OF_FIRST = "all but the last of the first input"  # as of a matrix that is not transposed
FIRST_AXIS = "the first"  # samples

OUTPUT, SECOND_OUTPUT = -1, -2  # numbers of outputs, beside those of inputs
EVERY = -1  # of inputs that a row does not list


class OperationType(NamedTuple):
    """What holds of one type of operation.

    Attributes:
      kind: See above; "" where none of them says it.
      gradient: What its gradient needs of inputs and outputs, by number; of what is not listed nothing, or a shape.
        None where that is not known. Inputs of whole numbers (axes, sizes, places) are not listed. Those listed of a
        product are its factors.
      reads: What it needs, as an operation of the backward pass, of an input that is no gradient.
      again: How an error passes where it runs again: LINEAR, SMOOTH; "" where the backward pass does not run it again.
      exact: Inputs that have to be exact where it runs again: a small error of them may become any.
      rows: Axes along which its rows are independent; "" where there are none that hold for all of its attributes.
      gradient_of: The operation that it is the gradient of, where it is there for that alone.
      near_zero: The input near whose zero what it makes has no bound.
      has_no_bound: What it makes has no bound, whatever it reads: inverses of matrices, and what has poles.
      is_logarithmic: Where a gradient goes through it, what is added there is the exponent of a factor.
      saturates: What it makes is bounded, whatever it reads.
      flattens: It brings all below zero close together: beside wide values an error of what it makes says nothing of
        them, one of its argument does.
      least: The least value that it makes, whatever it reads.
      limits: Between which an activation hands a gradient on.
      is_verbatim: It moves values or chooses among them: run again it makes the same bits. Arithmetic may round
        otherwise: TensorFlow's optimizer rewrites formulas by what stands around them.
      broadcasts: Arithmetic of inputs of whatever shapes: made of a smaller input it is what is broadcast.
      cancels: What its inputs have in common cancels, and errors do not.
    """

    kind: str = ""
    gradient: Mapping[int, str] | None = None
    reads: Mapping[int, str] = {}
    again: str = ""
    exact: tuple[int, ...] = ()
    rows: str = ""
    gradient_of: str = ""
    near_zero: int | None = None
    has_no_bound: bool = False
    is_logarithmic: bool = False
    saturates: bool = False
    flattens: bool = False
    least: float | None = None
    limits: tuple[float, float] | None = None
    is_verbatim: bool = False
    broadcasts: bool = False
    cancels: bool = False

    @property
    def is_alias(self) -> bool:
        """Whether each output is the input of that number."""
        return self.kind in (ALIAS, ALIASES)

    @property
    def is_view(self) -> bool:
        """Whether it hands all values on in one buffer, in whatever shape."""
        return self.kind in (ALIAS, VIEW)

    @property
    def is_move(self) -> bool:
        """Whether it hands all values on, in whatever shape and order."""
        return self.is_view or self.kind == MOVE

    @property
    def is_elementwise(self) -> bool:
        return self.kind in (ELEMENTWISE, ADDITION)

    @property
    def hands_on(self) -> bool:
        """Whether it hands one gradient on, element by element, repeated or summed."""
        return self.is_move or self.kind in (ELEMENTWISE, REPEAT, SUMMATION)

    @property
    def is_product(self) -> bool:
        return self.kind in (MATRIX_PRODUCT, CONVOLUTIONAL, KERNEL_GRADIENT)

    @property
    def is_free(self) -> bool:
        """Whether what it makes is there anyway, and not made of activations."""
        return self.kind in (SHAPE, SOURCE)

    @property
    def is_small(self) -> bool:
        """Whether it makes less than it reads, as a rule."""
        return self.kind in (SHAPE, SUMMATION, REDUCTION, KERNEL_GRADIENT)

    def need(self, number: int) -> str:
        """What it needs, as an operation of the backward pass, of its input of that number."""
        return self.reads.get(number, self.reads.get(EVERY, UNKNOWN))


def _rows(names: str, row: OperationType) -> dict[str, OperationType]:
    return dict.fromkeys(names.split(), row)


def _function(name: str, gradient: Mapping[int, str], **properties: object) -> dict[str, OperationType]:
    """An elementwise function whose gradient is made by operations of this table."""
    known: dict = {"again": SMOOTH, "rows": EVERY_AXIS, **properties}
    return {name: OperationType(ELEMENTWISE, gradient, **known)}


def _activation(
    name: str, of: int, need: str, by: str, reads: int, divides: bool = False, **properties: object
) -> dict[str, OperationType]:
    """An elementwise function with a gradient operation of its own.

    Args:
      name: Of the function.
      of: What its gradient reads: OUTPUT, or 0, its input.
      need: What the gradient needs of that.
      by: Name of the gradient operation.
      reads: Number of that among its inputs.
      divides: The gradient operation divides by what it reads.
      properties: Of the function; `limits` of both.
    """
    limits: Any = properties.get("limits")
    near_zero = reads if divides else None
    row = OperationType(ELEMENTWISE, None, {reads: need}, rows=EVERY_AXIS, gradient_of=name, limits=limits)
    return {**_function(name, {of: need}, **properties), by: row._replace(near_zero=near_zero)}


# Their gradients read no values, and an error passes through them as it is.
_ALIAS = OperationType(ALIAS, {}, {EVERY: LINEAR}, LINEAR, rows=EVERY_AXIS, is_verbatim=True)
_VIEW = OperationType(VIEW, {}, {0: LINEAR}, LINEAR, is_verbatim=True)
_JOIN = OperationType(JOIN, {}, {EVERY: LINEAR}, LINEAR, is_verbatim=True)
_ARITHMETIC = OperationType(
    ELEMENTWISE, {}, {EVERY: LINEAR}, LINEAR, rows=EVERY_AXIS, is_verbatim=True, broadcasts=True
)
_ADDITION = _ARITHMETIC._replace(kind=ADDITION, is_verbatim=False)
_PRODUCT = _ARITHMETIC._replace(gradient={0: LINEAR, 1: LINEAR}, is_verbatim=False)
_QUOTIENT = _PRODUCT._replace(
    gradient={0: LINEAR, 1: UNBOUNDED}, reads={0: LINEAR, 1: UNBOUNDED}, exact=(1,), near_zero=1
)
_CHOICE = OperationType(
    ELEMENTWISE, {0: EXACT}, {0: EXACT, 1: LINEAR, 2: LINEAR}, LINEAR, rows=EVERY_AXIS, is_verbatim=True
)
# The larger of two activations hands the gradient to one of them: which one, a comparison of values says.
_LARGER = OperationType(ELEMENTWISE, {0: EXACT, 1: EXACT}, again=LINEAR, rows=EVERY_AXIS, is_verbatim=True)
_RELU: dict = {"again": LINEAR, "least": 0.0, "is_verbatim": True}
_COMPARISON = OperationType(ELEMENTWISE, {}, again=SMOOTH, exact=(0, 1), rows=EVERY_AXIS)
_EXTREME = OperationType(
    REDUCTION, {0: EXACT, OUTPUT: EXACT}, again=LINEAR, rows=OTHER_AXES, is_verbatim=True
)
_MATRIX_PRODUCT = OperationType(MATRIX_PRODUCT, {0: LINEAR, 1: LINEAR}, {EVERY: LINEAR}, rows=ROWS_OF_FIRST)
_CONVOLUTION = OperationType(
    CONVOLUTIONAL, {0: CONVOLUTION, 1: CONVOLUTION}, {EVERY: CONVOLUTION}, rows=FIRST_AXIS
)
# The gradients of a transposed convolution are convolutions. Their sizes are inputs too.
_INPUT_GRADIENT = _CONVOLUTION._replace(gradient={1: CONVOLUTION, 2: CONVOLUTION})
_FILTER_GRADIENT = OperationType(KERNEL_GRADIENT, {0: CONVOLUTION, 2: CONVOLUTION}, {EVERY: CONVOLUTION})

TABLE: Mapping[str, OperationType] = {
    # There anyway, or of a shape alone
    **_rows("Const Placeholder ReadVariableOp VarHandleOp", OperationType(SOURCE)),
    "Range": OperationType(SOURCE, again=SMOOTH, exact=(0, 1, 2)),
    **_rows("Rank Shape ShapeN Size", OperationType(SHAPE)),
    **_rows("OnesLike ZerosLike", OperationType(BLANK, {}, again=SMOOTH, rows=EVERY_AXIS)),
    "Fill": OperationType(BLANK, {}, again=SMOOTH, exact=(0, 1)),
    "OneHot": OperationType("", again=SMOOTH, exact=(0, 1, 2, 3)),
    **_rows(
        "Comptrain>Dropout RandomStandardNormal RandomUniform StatelessRandomNormalV2 StatelessRandomUniformV2 "
        "StatelessTruncatedNormalV2 TruncatedNormal",
        OperationType(RANDOM),
    ),
    # Hand values on as they are
    **_rows("EnsureShape Identity Snapshot StopGradient", _ALIAS),
    "PreventGradient": _ALIAS._replace(gradient=None),
    "IdentityN": _ALIAS._replace(kind=ALIASES),
    **_rows("Comptrain>Bitmask Comptrain>Compress Comptrain>MemoryLimit", OperationType(PASSED)),
    **_rows("ExpandDims Reshape Squeeze", _VIEW),
    "Transpose": _VIEW._replace(kind=MOVE),
    **_rows("BroadcastTo Tile", _VIEW._replace(kind=REPEAT)),
    **_rows("GatherNd GatherV2 SplitV Unpack", _VIEW._replace(kind=PART)),
    **_rows("Slice StridedSlice", _VIEW._replace(kind=PART, reads={EVERY: LINEAR})),
    **_rows("DepthToSpace SpaceToDepth", _VIEW._replace(kind=PART, rows=FIRST_AXIS)),
    "BatchToSpaceND": _VIEW._replace(kind=PART),
    "SpaceToBatchND": _JOIN._replace(reads={0: LINEAR}),
    "Split": _JOIN._replace(reads={1: LINEAR}),  # the axis comes first
    "ConcatV2": _JOIN._replace(rows=OTHER_AXES),
    "Pack": _JOIN,
    **_rows("MirrorPad Pad PadV2", _JOIN._replace(reads={0: LINEAR}, rows=OTHER_AXES)),
    # The edges between parts of a matrix are numbers that have to be exact
    "MatrixBandPart": OperationType("", {}, again=SMOOTH, exact=(0, 1, 2)),
    # Elementwise arithmetic
    **_rows("Cast Neg", _ARITHMETIC),
    **_rows("Add AddV2", _ADDITION),
    **_rows("AddN BiasAdd", _ADDITION._replace(broadcasts=False)),
    "Sub": _ARITHMETIC._replace(is_verbatim=False, cancels=True),
    **_rows("Mul MulNoNan", _PRODUCT),
    **_rows("Div DivNoNan RealDiv Xdivy", _QUOTIENT),
    **_rows("Select SelectV2", _CHOICE),
    **_rows("Maximum Minimum", _LARGER),
    **_function("SquaredDifference", {0: LINEAR, 1: LINEAR}, least=0.0, cancels=True),
    # A whole exponent of one or more needs no exact base: see `exact_inputs`.
    **_function("Pow", {0: UNBOUNDED, 1: UNBOUNDED, OUTPUT: LINEAR}, exact=(0, 1), near_zero=0),
    **_rows(
        "Equal FloorDiv Greater GreaterEqual Less LessEqual LogicalAnd LogicalOr Mod NotEqual", _COMPARISON
    ),
    "FloorMod": _COMPARISON._replace(gradient={0: EXACT, 1: EXACT}),
    **_rows("Ceil Floor IsFinite IsInf IsNan LogicalNot Rint Round", _COMPARISON._replace(exact=(0,))),
    **_rows("Bitcast BitwiseAnd BitwiseOr BitwiseXor", OperationType(ELEMENTWISE, rows=EVERY_AXIS)),
    **_function("Sign", {}, exact=(0,), saturates=True),
    # Elementwise functions with a gradient operation of their own: what that reads, what it needs of it
    **_activation("Relu", OUTPUT, SIGN, "ReluGrad", 1, limits=(0.0, math.inf), **_RELU),
    **_activation("Relu6", OUTPUT, SIGN, "Relu6Grad", 1, limits=(0.0, 6.0), **_RELU),
    **_activation("LeakyRelu", 0, SIGN, "LeakyReluGrad", 1, again=LINEAR, limits=(0.0, math.inf)),
    **_activation("Elu", OUTPUT, NONLINEAR, "EluGrad", 1, least=-1.0, flattens=True),
    **_activation("Selu", OUTPUT, NONLINEAR, "SeluGrad", 1, flattens=True),
    **_activation("Sigmoid", OUTPUT, NONLINEAR, "SigmoidGrad", 0, least=0.0, saturates=True),
    **_activation("Tanh", OUTPUT, NONLINEAR, "TanhGrad", 0, least=-1.0, saturates=True),
    **_activation("Softplus", 0, NONLINEAR, "SoftplusGrad", 1, least=0.0),
    **_activation("Softsign", 0, NONLINEAR, "SoftsignGrad", 1, least=-1.0, saturates=True),
    **_activation("Comptrain>Gelu", 0, NONLINEAR, "Comptrain>GeluGrad", 0),
    **_activation("Comptrain>Silu", 0, NONLINEAR, "Comptrain>SiluGrad", 0),
    **_activation("Comptrain>TanhGelu", 0, NONLINEAR, "Comptrain>TanhGeluGrad", 0),
    **_activation("Sqrt", OUTPUT, UNBOUNDED, "SqrtGrad", 0, divides=True, exact=(0,), least=0.0),
    **_activation("Rsqrt", OUTPUT, UNBOUNDED, "RsqrtGrad", 0, exact=(0,), near_zero=0),
    **_activation("Reciprocal", OUTPUT, UNBOUNDED, "ReciprocalGrad", 0, exact=(0,), near_zero=0),
    **_activation("Inv", OUTPUT, UNBOUNDED, "InvGrad", 0, exact=(0,), near_zero=0),
    "Comptrain>BitmaskGrad": OperationType(ELEMENTWISE, reads={0: EXACT}),
    # Elementwise functions whose gradient is a formula
    **_function("Square", {0: LINEAR}, least=0.0),
    **_function("Abs", {0: SIGN}, exact=(0,), least=0.0),
    **_function("Exp", {OUTPUT: LINEAR}, least=0.0, is_logarithmic=True),
    **_function("Expm1", {0: NONLINEAR}, is_logarithmic=True),
    **_function("Log", {0: UNBOUNDED}, exact=(0,), is_logarithmic=True),
    **_function("Log1p", {0: UNBOUNDED}, exact=(0,), is_logarithmic=True),
    # Of wide arguments an error would be one of several turns: what they make is held itself.
    **_function("Cos", {0: NONLINEAR}, exact=(0,), least=-1.0),
    **_function("Sin", {0: NONLINEAR}, exact=(0,), least=-1.0),
    **_function("Tan", {0: UNBOUNDED}, exact=(0,), has_no_bound=True),
    **_function("Erf", {0: NONLINEAR}, least=-1.0, saturates=True),
    **_function("Erfc", {0: NONLINEAR}, least=0.0),
    **_function("Erfinv", {OUTPUT: UNBOUNDED}, exact=(0,), has_no_bound=True),
    # Along axes
    **_rows("Mean Sum", OperationType(SUMMATION, {}, {0: LINEAR}, LINEAR, rows=OTHER_AXES)),
    **_rows("Max Min", _EXTREME),
    **_rows("ArgMax ArgMin", OperationType(REDUCTION, {}, rows=OTHER_AXES)),
    "L2Loss": OperationType(REDUCTION, {0: LINEAR}),
    **_rows("Cumsum ReverseV2 Roll", OperationType("", {}, rows=OTHER_AXES)),
    "CumulativeLogsumexp": OperationType(is_logarithmic=True),
    "Softmax": OperationType("", {OUTPUT: NONLINEAR}, again=SMOOTH, rows=ALL_BUT_LAST, least=0.0, saturates=True),
    "LogSoftmax": OperationType("", {OUTPUT: NONLINEAR}, again=SMOOTH, rows=ALL_BUT_LAST),
    # Both make the gradient beside the loss; the logits are read for that of the labels.
    "SoftmaxCrossEntropyWithLogits": OperationType(
        LOSS, {0: NONLINEAR, SECOND_OUTPUT: LINEAR}, again=SMOOTH, rows=FIRST_AXIS),
    "SparseSoftmaxCrossEntropyWithLogits": OperationType(
        LOSS, {SECOND_OUTPUT: LINEAR}, again=SMOOTH, rows=FIRST_AXIS),
    # Products
    **_rows("BatchMatMul BatchMatMulV2 BatchMatMulV3 MatMul", _MATRIX_PRODUCT),
    "Einsum": _MATRIX_PRODUCT._replace(rows=""),  # as its equation says
    **_rows("Conv2D Conv3D DepthwiseConv2dNative", _CONVOLUTION),
    **_rows("Conv2DBackpropInput Conv3DBackpropInputV2 DepthwiseConv2dNativeBackpropInput", _INPUT_GRADIENT),
    **_rows("Conv2DBackpropFilter Conv3DBackpropFilterV2 DepthwiseConv2dNativeBackpropFilter", _FILTER_GRADIENT),
    "BiasAddGrad": OperationType(SUMMATION, {}, {0: LINEAR}),
    # Normalizations: scale and statistics are vectors
    "FusedBatchNormV3": OperationType("", {0: NORM, 1: EXACT, -4: EXACT, -5: EXACT, -6: EXACT}),
    "FusedBatchNormGradV3": OperationType(
        reads={1: NORM, 2: EXACT, 3: EXACT, 4: EXACT, 5: EXACT}, gradient_of="FusedBatchNormV3"),
    # The gradient of the second is that of both
    "Comptrain>LayerNorm": OperationType("", {}, rows=ALL_BUT_LAST),
    "Comptrain>LayerNormAffine": OperationType(
        "", {0: NORM, 1: EXACT, 3: EXACT}, again=LINEAR, rows=ALL_BUT_LAST),
    "Comptrain>LayerNormGrad": OperationType(
        reads={0: NORM, 2: EXACT, 3: EXACT}, gradient_of="Comptrain>LayerNormAffine"),
    # Images
    **_rows("AvgPool AvgPool3D", OperationType("", {}, rows=FIRST_AXIS)),
    **_rows("MaxPool MaxPool3D", OperationType("", {0: WINDOW, OUTPUT: WINDOW}, rows=FIRST_AXIS)),
    "MaxPoolWithArgmax": OperationType("", {0: WINDOW, SECOND_OUTPUT: WINDOW}, rows=FIRST_AXIS),
    "MaxPoolGrad": OperationType(reads={0: WINDOW, 1: WINDOW}, rows=FIRST_AXIS, gradient_of="MaxPool"),
    "MaxPool3DGrad": OperationType(reads={0: WINDOW, 1: WINDOW}, rows=FIRST_AXIS, gradient_of="MaxPool3D"),
    "MaxPoolGradWithArgmax": OperationType(reads={0: WINDOW, 2: WINDOW}, gradient_of="MaxPoolWithArgmax"),
    "Comptrain>MaxPoolGrad": OperationType(reads={0: EXACT}, rows=FIRST_AXIS),
    **_rows("ResizeBicubic ResizeBilinear", OperationType("", {0: SIZE}, rows=FIRST_AXIS)),
    "ResizeNearestNeighbor": OperationType("", {}, rows=FIRST_AXIS),
    "ResizeBicubicGrad": OperationType(reads={1: SIZE}, rows=FIRST_AXIS, gradient_of="ResizeBicubic"),
    "ResizeBilinearGrad": OperationType(reads={1: SIZE}, rows=FIRST_AXIS, gradient_of="ResizeBilinear"),
    # Inverses of matrices, decompositions, and what has poles
    **_rows(
        "BandedTriangularSolve Cholesky CholeskyGrad Digamma Eig LogMatrixDeterminant Lu MatrixDeterminant "
        "MatrixInverse MatrixLogarithm MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve Ndtri "
        "Polygamma Qr SelfAdjointEigV2 Svd TridiagonalSolve Zeta",
        OperationType(has_no_bound=True),
    ),
}  # fmt: skip
_NOT_KNOWN = OperationType()


def about(op_type: str) -> OperationType:
    """The row of an operation's type; one that says nothing where there is none."""
    return TABLE.get(op_type, _NOT_KNOWN)
