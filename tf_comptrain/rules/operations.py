"""Operations of keras.ops in a functional graph (`x * y`, `ops.relu(x)`): the rules of the layers they are."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tf_comptrain import _keras
from tf_comptrain.codecs import SUPPORTED_DTYPES
from tf_comptrain.rules.activation import Activation, Mask, Slopes, gelu_tanh
from tf_comptrain.rules.base import BITMASK, KEEP, Context, Passive, Rule, Save, is_tensor, register_rule
from tf_comptrain.rules.differentiate import from_choice, from_sign
from tf_comptrain.rules.elementwise import UNBOUNDED, Extreme, FromInputs, Softmax, Unbounded, as_tensors


def _register(rule: Rule, *names: str) -> None:
    register_rule(*_keras.operation_classes(*names))(rule)


class _Product(FromInputs):
    """Each factor is the others' gradient; where the others are constants nothing is held."""

    def saves(self, layer, storage):
        return super().saves(layer, storage) if _keras.input_count(layer) != 1 else ()


class _Quotient(Passive):
    """By a constant."""

    def obstacle(self, layer):
        divisor, in_graph = _keras.call_arguments(layer)[1]
        return UNBOUNDED if in_graph else None

    def saves(self, layer, storage):
        return (Save("input", "input"),) if self.obstacle(layer) else ()


class _Power(FromInputs):
    """With a constant exponent of 1, 2, ...: the gradient of any other is unbounded, or that of a root."""

    def obstacle(self, layer):
        exponent, in_graph = _keras.call_arguments(layer)[1]
        whole = not in_graph and isinstance(exponent, (int, float)) and exponent >= 1 and exponent % 1 == 0
        return None if whole else UNBOUNDED


class _Where(Rule):
    """One bit says which of two values was taken."""

    storages = (BITMASK, KEEP)

    def saves(self, layer, storage):
        return (Save("mask", "output", BITMASK),)

    def call(self, context: Context, condition, *values, **kwargs):
        tensors = as_tensors(values)
        if kwargs or tensors is None or len(tensors) != 2:
            return context.original(condition, *values, **kwargs)
        condition = tf.cast(condition, tf.bool)
        return from_choice(lambda a, b: tf.where(condition, a, b), lambda a, b: condition, *tensors)


class _Absolute(Rule):
    storages = (BITMASK, KEEP)

    def saves(self, layer, storage):
        return (Save("mask", "output", BITMASK, bits=2),)

    def call(self, context: Context, x, **kwargs):
        if not is_tensor(x) or x.dtype not in SUPPORTED_DTYPES:
            return context.original(x, **kwargs)
        return from_sign(context.original, x)


class _Clip(Mask):
    def obstacle(self, layer):
        numbers = all(isinstance(end, (int, float)) for end in (layer.x_min, layer.x_max))
        return None if numbers else "its limits are tensors"


def _between(lower: float, upper: float) -> Slopes:
    """Slope 1 at both ends too, as TensorFlow's clip_by_value has it."""
    below = np.nextafter(np.float32(lower), np.float32(-np.inf))
    above = np.nextafter(np.float32(upper), np.float32(np.inf))
    return Slopes(float(below), float(above))


_register(
    Passive(),
    "Add", "AdaptiveAveragePool", "Append", "ArraySplit", "AveragePool", "BroadcastTo", "Cast", "Ceil",
    "Concatenate", "ConvertToTensor", "Copy", "CropImages", "Cumsum", "Deg2rad", "DepthToSpace", "Diagonal",
    "Dsplit", "Dstack", "ExpandDims", "Flip", "Fliplr", "Flipud", "Floor", "FullLike", "GetItem", "Hsplit",
    "Hstack", "Mean", "Moveaxis", "Negative", "OnesLike", "Pad", "PadImages", "Rad2deg", "Ravel", "Rearrange",
    "Repeat", "Reshape", "Resize", "Roll", "Rot90", "Round", "SaturateCast", "Sign", "Slice", "SpaceToDepth",
    "Split", "Squeeze", "Stack", "StopGradient", "Subtract", "Sum", "Swapaxes", "Take", "Tile", "Trace",
    "Transpose", "Trunc", "Unstack", "Vsplit", "Vstack", "ZerosLike",
)  # fmt: skip
_register(_Product(), "Multiply", "Matmul", "Dot", "Einsum", "Tensordot", "Inner", "Outer", "Vdot")
_register(Activation(lambda _: keras.activations.relu), "Relu")
_register(Activation(lambda _: keras.activations.tanh), "Tanh")
_register(Activation(lambda _: keras.activations.sigmoid), "Sigmoid")
_register(Activation(lambda _: keras.activations.silu), "Silu")
_register(Activation(lambda layer: gelu_tanh if layer.approximate else keras.activations.gelu), "Gelu")
_register(Mask(lambda _: Slopes(upper=6.0)), "Relu6")
_register(Mask(lambda layer: Slopes(off=float(layer.negative_slope))), "LeakyRelu")
_register(Mask(lambda _: _between(-1.0, 1.0)), "HardTanh")
_register(_Clip(lambda layer: _between(layer.x_min, layer.x_max)), "Clip")
_register(Softmax(), "Softmax")
_register(
    FromInputs(),
    "Arcsinh", "Arctan", "Celu", "Cos", "Cosh", "DotProductAttention", "Elu", "Erf", "Erfc", "Exp", "Exp2", "Expm1",
    "Glu", "HardSigmoid", "HardSilu", "LogSigmoid", "LogSoftmax", "Logaddexp", "Logsumexp", "Selu", "Sin", "Sinh",
    "Softplus", "Softsign", "Square", "Squareplus", "TanhShrink",
)  # fmt: skip
_register(FromInputs("norm"), "LayerNorm", "RMSNorm", "Var")
_register(FromInputs("linear"), "Conv", "ConvTranspose", "DepthwiseConv")
_register(Extreme(tf.maximum, tf.greater_equal), "Maximum")
_register(Extreme(tf.minimum, tf.less_equal), "Minimum")
_register(_Where(), "Where")
_register(_Absolute(), "Absolute", "Abs")
_register(_Quotient(), "Divide", "TrueDivide")
_register(_Power(), "Power")
_register(
    Unbounded(),
    "Arccos", "Arccosh", "Arcsin", "Arctanh", "Cbrt", "DivideNoNan", "Erfinv", "Hypot", "Log", "Log10", "Log1p",
    "Log2", "Normalize", "Reciprocal", "Rsqrt", "Sqrt", "Std", "Tan",
)  # fmt: skip
