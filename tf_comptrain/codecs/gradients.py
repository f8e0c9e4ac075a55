"""The gradients of this library's ops: TensorFlow knows them from the import of this module on."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_comptrain import native


def _no_second_gradient(what: str) -> Any:
    def gradient(op: tf.Operation, *unused: Any) -> Any:
        raise LookupError(
            f"The gradient of a gradient was asked for through {what} ({op.type}): tf_comptrain holds "
            "activations compressed and computes first-order gradients only. Use "
            "tf_comptrain.restore_model(model) or storage='keep' for second-order gradients."
        )

    return gradient


@tf.RegisterGradient("Comptrain>Compress")
def _compress_gradient(op: tf.Operation, dy: tf.Tensor, unused_dstream: Any, unused_dstate: Any) -> Any:
    return dy, None


@tf.RegisterGradient("Comptrain>StreamMaskGrad")
def _stream_mask_second_gradient(op: tf.Operation, ddx: tf.Tensor) -> Any:
    of_each = native.ops().comptrain_stream_mask_grad(
        op.inputs[0],
        [ddx],
        codec=op.get_attr("codec"),
        bits=op.get_attr("bits"),
        row_scales=op.get_attr("row_scales"),
    )
    return None, *[of_each] * op.get_attr("N")


@tf.RegisterGradient("Comptrain>Bitmask")
def _bitmask_gradient(op: tf.Operation, dy: tf.Tensor, unused_dbits: Any) -> Any:
    return dy


@tf.RegisterGradient("Comptrain>BitmaskGrad")
def _bitmask_second_gradient(op: tf.Operation, ddx: tf.Tensor) -> Any:
    return None, native.ops().comptrain_bitmask_grad(
        op.inputs[0], ddx, on=op.get_attr("on"), off=op.get_attr("off")
    )


@tf.RegisterGradient("Comptrain>MaxPool")
def _max_pool_gradient(op: tf.Operation, dy: tf.Tensor, unused_dindex: Any) -> Any:
    return native.ops().comptrain_max_pool_grad(
        op.outputs[1],
        dy,
        tf.shape(op.inputs[0]),
        ksize=op.get_attr("ksize"),
        strides=op.get_attr("strides"),
        padding=op.get_attr("padding"),
    )


@tf.RegisterGradient("Comptrain>Dropout")
def _dropout_gradient(op: tf.Operation, dy: tf.Tensor, unused_dbits: Any) -> Any:
    return native.ops().comptrain_bitmask_grad(op.outputs[1], dy, on=op.get_attr("scale")), None, None


@tf.RegisterGradient("Comptrain>Gelu")
def _gelu_gradient(op: tf.Operation, dy: tf.Tensor) -> Any:
    return native.ops().comptrain_gelu_grad(op.inputs[0], dy)


@tf.RegisterGradient("Comptrain>Silu")
def _silu_gradient(op: tf.Operation, dy: tf.Tensor) -> Any:
    return native.ops().comptrain_silu_grad(op.inputs[0], dy)


@tf.RegisterGradient("Comptrain>TanhGelu")
def _tanh_gelu_gradient(op: tf.Operation, dy: tf.Tensor) -> Any:
    return native.ops().comptrain_tanh_gelu_grad(op.inputs[0], dy)


@tf.RegisterGradient("Comptrain>LayerNorm")
def _layer_norm_gradient(unused_op: tf.Operation, dx: tf.Tensor, unused_dinv_std: Any) -> Any:
    return dx  # the gradient of `LayerNormAffine` is that of both


@tf.RegisterGradient("Comptrain>LayerNormAffine")
def _layer_norm_affine_gradient(op: tf.Operation, dy: tf.Tensor) -> Any:
    x_norm, gamma, _, inv_std = op.inputs
    return *native.ops().comptrain_layer_norm_grad(x_norm, dy, gamma, inv_std), None


@tf.RegisterGradient("Comptrain>LayerNormGrad")
def _layer_norm_second_gradient(
    op: tf.Operation, ddx: tf.Tensor, ddgamma: tf.Tensor, ddbeta: tf.Tensor
) -> Any:
    x_norm, dy, gamma, inv_std = op.inputs
    x = tf.cast(x_norm, tf.float32) / inv_std[..., None]  # the gradient of x_norm is handed on as that of x
    with tf.GradientTape() as tape:
        tape.watch([x, dy, gamma])
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centred), -1, keepdims=True)
        # The epsilon of the forward pass is what is missing.
        epsilon = tf.stop_gradient(tf.math.reciprocal(tf.square(inv_std))[..., None] - variance)
        scale = tf.math.rsqrt(variance + epsilon)
        normal, of_y = centred * scale, tf.cast(dy, tf.float32)
        g = of_y * gamma
        slope = tf.reduce_mean(g * normal, -1, keepdims=True)
        dx = scale * (g - tf.reduce_mean(g, -1, keepdims=True) - normal * slope)
        rows = list(range(len(x.shape) - 1))
        results = [tf.cast(dx, dy.dtype), tf.reduce_sum(of_y * normal, rows), tf.reduce_sum(of_y, rows)]
    of_x, *others = tape.gradient(results, [x, dy, gamma], [ddx, ddgamma, ddbeta])
    return tf.cast(of_x, x_norm.dtype), *others, None


@tf.RegisterGradient("Comptrain>MemoryLimit")
def _memory_limit_gradient(op: tf.Operation, dy: tf.Tensor) -> Any:
    where = op.get_attr("where").decode()
    return native.ops().comptrain_memory_limit(dy, op.inputs[1], where=f"{where} (backward)"), None


tf.RegisterGradient("Comptrain>Fence")(lambda op, *dys: list(dys))
tf.RegisterGradient("Comptrain>Decompress")(_no_second_gradient("a decompressed activation"))
tf.RegisterGradient("Comptrain>BatchNormGrad")(_no_second_gradient("batch normalization"))
tf.RegisterGradient("Comptrain>GeluGrad")(_no_second_gradient("GELU"))
tf.RegisterGradient("Comptrain>SiluGrad")(_no_second_gradient("SiLU"))
tf.RegisterGradient("Comptrain>TanhGeluGrad")(_no_second_gradient("GELU"))
tf.RegisterGradient("Comptrain>SoftmaxGrad")(_no_second_gradient("a softmax"))
tf.RegisterGradient("Comptrain>MaxPoolGrad")(_no_second_gradient("max pooling"))
tf.no_gradient("Comptrain>GradientStats")
