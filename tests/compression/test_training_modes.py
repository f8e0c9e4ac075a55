"""The ways people train: each follows plain Keras when the bound is tight."""

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from models import compiled, images, layers, small_cnn
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation

X, Y = images(32)


def fit(compress, model=None, compile_arguments=None, **fit_arguments):
    """Losses; plain Keras runs eagerly, which takes less time than a trace."""
    model = model or small_cnn()
    compiled(model, run_eagerly=not compress, **(compile_arguments or {}))
    if compress:
        ct.compress_model(model, error_bound=1e-5)
    history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, **fit_arguments)
    if compress:
        assert any(s.read_state().stream_bytes > 0 for s in instrumentation(model).sites().values())
    return history.history["loss"]


MODES = {
    "steps_per_execution": ({"steps_per_execution": 2}, {}),
    "gradient_accumulation": ({"optimizer": keras.optimizers.Adam(1e-3, gradient_accumulation_steps=2)}, {}),
    "adam_with_clipping": ({"optimizer": keras.optimizers.Adam(1e-3, clipnorm=1.0)}, {}),
    "weight_decay_and_ema": ({"optimizer": keras.optimizers.AdamW(1e-3, use_ema=True)}, {}),
    "sample_weights": ({}, {"sample_weight": np.linspace(0, 1, 32)}),
    "class_weights": ({}, {"class_weight": {k: 1.0 + k for k in range(10)}}),
}


@pytest.mark.long("adam_with_clipping", "class_weights", "sample_weights")
@pytest.mark.parametrize("mode", MODES)
def test_follows_plain_keras(mode):
    compile_arguments, fit_arguments = MODES[mode]

    def arguments():
        made = dict(compile_arguments)
        if "optimizer" in made:  # an optimizer belongs to one model
            made["optimizer"] = type(made["optimizer"]).from_config(made["optimizer"].get_config())
        return made

    plain = fit(False, compile_arguments=arguments(), **fit_arguments)
    ours = fit(True, compile_arguments=arguments(), **fit_arguments)
    np.testing.assert_allclose(ours, plain, rtol=5e-3)


def test_mixed_float16_with_loss_scaling():
    def build():
        keras.config.set_dtype_policy("mixed_float16")
        try:
            return small_cnn()
        finally:
            keras.config.set_dtype_policy("float32")

    arguments = {"optimizer": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.02))}
    plain = fit(False, build(), arguments)
    arguments = {"optimizer": keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.02))}
    ours = fit(True, build(), arguments)
    np.testing.assert_allclose(ours, plain, rtol=0.05)


def test_stop_gradient_and_partly_frozen_models():
    def build():
        keras.utils.set_random_seed(0)
        inputs = keras.Input((16, 16, 3))
        x = layers.Conv2D(32, 3, activation="relu", name="frozen")(inputs)
        x = layers.Lambda(tf.stop_gradient, name="stop")(x)
        x = layers.Conv2D(32, 3, activation="relu")(x)
        model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
        model.get_layer("frozen").trainable = False
        return model

    np.testing.assert_allclose(fit(True, build()), fit(False, build()), rtol=5e-3)


def test_shared_layers_and_several_inputs_and_outputs():
    def build():
        keras.utils.set_random_seed(0)
        a, b = keras.Input((16, 16, 3)), keras.Input((16, 16, 3))
        conv = layers.Conv2D(32, 3, activation="relu", name="shared")
        both = [layers.GlobalAveragePooling2D()(conv(x)) for x in (a, b)]
        outputs = [layers.Dense(10)(layers.Concatenate()(both)), layers.Dense(10)(both[0])]
        model = keras.Model([a, b], outputs)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05), [loss, loss])
        return model

    losses = []
    for compress in (False, True):
        model = build()
        model.run_eagerly = not compress
        if compress:
            ct.compress_model(model, error_bound=1e-5)
        history = model.fit([X, X[::-1]], [Y, Y], batch_size=8, epochs=2, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=5e-3)


def test_the_wrapper_trains_saves_and_loads(tmp_path):
    def build(wrap):
        keras.utils.set_random_seed(0)
        stack = [
            layers.Conv2D(32, 3, activation="relu"),
            layers.AdaptiveAveragePooling2D(7),  # no rule: recomputed from its input
            layers.Flatten(),
            layers.Dense(10),
        ]
        return compiled(keras.Sequential([keras.Input((16, 16, 3)), *map(wrap, stack)]))

    model = build(lambda layer: layer)
    model.run_eagerly = True
    plain = model.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history["loss"]
    model = build(lambda layer: ct.Compress(layer, error_bound=1e-5))
    ours = model.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(ours, plain, rtol=1e-3)
    model.save(tmp_path / "wrapped.keras")
    loaded = keras.models.load_model(tmp_path / "wrapped.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))


def test_the_wrapper_refuses_what_it_cannot_do():
    conv = layers.Conv2D(8, 3)
    ct.Compress(conv)
    with pytest.raises(ValueError, match="instrumented already"):
        ct.Compress(conv)
    with pytest.raises(ValueError, match="already"):
        ct.Compress(ct.Compress(layers.Conv2D(8, 3)))
    with pytest.raises(TypeError, match="keras.layers.Layer"):
        ct.Compress("conv")
    with pytest.raises(ValueError, match="-1"):
        ct.Compress(layers.Conv2D(8, 3), error_bound=-1)


MIRRORED = """
    import numpy as np
    import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import tf_comptrain as ct
    from models import compiled, images, small_cnn

    losses = []
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for compress in (False, True):
        with strategy.scope():
            model = compiled(small_cnn())
        if compress:
            ct.compress_model(model, error_bound=1e-5)
        x, y = images(32)
        losses.append(model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=5e-3)

    # One replica's numbers are 50 times the other's: the states and statistics of each are its own.
    from tensorflow import keras
    from tf_comptrain import _keras
    from tf_comptrain.codecs import State
    from tf_comptrain.compression.instrumentation import instrumentation

    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), *(keras.layers.Dense(64) for _ in range(3))])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    ct.compress_model(model)
    x = np.random.default_rng(0).normal(size=(96, 64)) * np.where(np.arange(96) % 32 < 16, 1.0, 50.0)[:, None]
    data = tf.data.Dataset.from_tensor_slices((x.astype("float32"), np.zeros((96, 64), "float32"))).batch(32)
    model.fit(data, verbose=0)
    held = instrumentation(model).held
    small, large = (part.numpy()[:2] for part in _keras.replica_parts(held.table.variable))
    column = State._fields.index("running_sigma")
    assert (large[:, column] > 20 * small[:, column]).all() and (small[:, column] > 0).all()
    model.fit(data, verbose=0, callbacks=[ct.AdaptiveErrorBound(warmup=0, interval=100)])
    small, large = (part.numpy()[:2, 0] for part in _keras.replica_parts(held.statistics.variable))
    assert (large > 400 * small).all() and (small > 0).all()
"""


@pytest.mark.long
def test_mirrored_strategy_follows_plain_keras():
    command = [sys.executable, "-c", textwrap.dedent(MIRRORED)]
    result = subprocess.run(command, cwd=Path(__file__).resolve().parents[1], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]


class Branches(layers.Layer):
    """Calls its layers in what TensorFlow takes the gradient of from outside."""

    def __init__(self, how, **kwargs):
        super().__init__(**kwargs)
        self.how, self.inner = how, Own()

    def call(self, x, training=None):
        if self.how == "cond":
            return tf.cond(tf.reduce_mean(x) > 1e3, lambda: x, lambda: self.inner(x))
        if self.how == "function in cond":
            return tf.cond(tf.reduce_mean(x) > 1e3, lambda: x, lambda: tf.function(self.inner)(x))
        return tf.while_loop(
            lambda k, x: k < 2, lambda k, x: (k + 1, self.inner(x)), (0, x), maximum_iterations=2
        )[1]


class Own(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.conv, self.norm = layers.Conv2D(8, 3, padding="same"), layers.LayerNormalization()

    def call(self, x):
        return tf.nn.relu(self.norm(self.conv(x)))


@pytest.mark.long("cond")
@pytest.mark.parametrize("how", ["cond", "function in cond", "loop"])
def test_branches_and_loops_of_the_user_s_layers(how):
    def build():
        keras.utils.set_random_seed(0)
        x = layers.Conv2D(8, 3, activation="relu")(inputs := keras.Input((16, 16, 3)))
        return compiled(keras.Model(inputs, layers.Dense(10)(layers.GlobalMaxPooling2D()(Branches(how)(x)))))

    (x, y), losses = images(16), []
    for compress in (False, True):
        model = build()
        model.run_eagerly = not compress
        if compress:
            ct.compress_model(model)
        losses.append(model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-2)


@pytest.mark.parametrize("how", ["cond", "loop"])
def test_steps_in_a_branch_or_loop_are_compressed(how):
    own = keras.Sequential([keras.Input((16, 16, 3)), Own(), layers.GlobalMaxPooling2D()])
    ct.compress_model(own)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(own(x, training=True) ** 2)
        return tf.norm(tape.gradient(loss, own.trainable_variables)[0])

    @tf.function
    def run(x):
        if how == "cond":
            return tf.cond(tf.size(x) > 0, lambda: step(x), lambda: 0.0)
        return tf.while_loop(lambda k, n: k < 2, lambda k, n: (k + 1, step(x)), (0, 0.0))[1]

    assert run(tf.constant(images(8)[0])) > 0
    assert all(site.read_state().stream_bytes > 0 for site in instrumentation(own).sites().values())
    ct.restore_model(own)
    assert not any("call" in vars(layer) for layer in own._flatten_layers())
