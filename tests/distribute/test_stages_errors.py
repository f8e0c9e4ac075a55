"""What `place` refuses, and leaves as it was; and what it leaves behind."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

import tf_comptrain as ct
from tf_comptrain.distribute import Stage

HERE = ["CPU:0"] * 2


def network():
    keras.utils.set_random_seed(0)
    image = keras.Input((8, 8, 3))
    x = layers.Conv2D(8, 3, name="conv")(image)
    x = layers.Flatten(name="flat")(x)
    return keras.Model(image, layers.Dense(4, name="out")(x))


def compiled(model, **settings):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **settings)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss)
    return model


def data():
    random = np.random.default_rng(0)
    return random.random((12, 8, 8, 3), np.float32), random.integers(0, 4, 12)


GOOD = [Stage(("conv",), (0,)), Stage(("flat", "out"), (1,))]


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([Stage(("conv", "pool"), (0,)), Stage(("flat", "out"), (1,))], "'pool'"),
        ([Stage(("conv",), (0,)), Stage(("out",), (1,))], "every layer.*'flat'"),
        ([Stage(("flat", "out"), (0,)), Stage(("conv",), (1,))], "in the order of the model"),
        ([Stage(("conv", "flat"), (0,)), Stage(("flat", "out"), (1,))], "'flat' twice"),
        ([Stage(("conv",), (0,)), Stage(("flat", "out"), (2,))], "devices that are there.* 2"),
        ([Stage(("conv",), (0, 0)), Stage(("flat", "out"), (1,))], "each device once"),
        ([Stage(("conv",), ()), Stage(("flat", "out"), (1,))], "numbers of devices"),
        ([Stage(("conv",), (0,), "columns"), Stage(("flat", "out"), (1,))], "'columns'"),
        ([Stage(("conv", "flat"), (0, 1), "rows"), Stage(("out",), (1,))], "split='rows'.*'flat'"),
        ([Stage(("conv",), (0,)), Stage(("flat", "out"), (0, 1), "channels")], "split='channels'.*'flat'"),
    ],
)
def test_bad_stages_are_named_and_change_nothing(stages, message):
    model = compiled(network())
    before = dict(vars(model)), [weight.value for weight in model.weights]
    with pytest.raises(ValueError, match=f"(?s)`stages` must.*{message}"):
        ct.distribute.place(model, stages, devices=HERE)
    assert dict(vars(model)) == before[0]
    assert all(weight.value is value for weight, value in zip(model.weights, before[1]))


def test_no_stages():
    for stages in ([], ("conv", "flat"), Stage(("conv",), (0,))):
        with pytest.raises(TypeError, match="`stages` must be a list"):
            ct.distribute.place(network(), stages, devices=HERE)


def test_devices_that_are_not_there():
    with pytest.raises(ValueError, match="`devices` must be among.*GPU:7"):
        ct.distribute.place(network(), GOOD, devices=["CPU:0", "GPU:7"])


def test_microbatches_are_a_whole_number():
    with pytest.raises(ValueError, match="`microbatches`"):
        ct.distribute.place(network(), GOOD, 0, devices=HERE)


def test_codecs_of_borders():
    with pytest.raises(ValueError, match="`codec` must be one of"):
        ct.distribute.place(network(), GOOD, devices=HERE, codec="zip")
    with pytest.raises(ValueError, match="`error_bound` must have a `codec`"):
        ct.distribute.place(network(), GOOD, devices=HERE, error_bound=0.1)


def test_regularized_activations_are_on_one_device():
    model = network()
    model.get_layer("conv").activity_regularizer = keras.regularizers.L2(0.1)
    with pytest.raises(ValueError, match="activity regularizer on one device.*'conv'"):
        ct.distribute.place(model, [Stage(("conv", "flat", "out"), (0, 1))], devices=HERE)


def test_shared_weights_are_in_one_stage():
    image = keras.Input((4,))
    first, second = layers.Dense(4, name="one"), layers.Dense(4, name="two")
    second.build((None, 4))
    first.build((None, 4))
    second._trainable_variables[0] = first.kernel
    model = keras.Model(image, second(first(image)))
    with pytest.raises(ValueError, match="share weights in one stage.*'one' and 'two'"):
        ct.distribute.place(model, [Stage(("one",), (0,)), Stage(("two",), (1,))], devices=HERE)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv = layers.Dense(4)

    def call(self, x):
        return self.conv(x)


def test_models_without_a_graph():
    with pytest.raises(ValueError, match="`model` must be a built functional.*subclassed"):
        ct.distribute.place(Subclassed(), GOOD, devices=HERE)
    with pytest.raises(ValueError, match="not built"):
        ct.distribute.place(keras.Sequential([layers.Dense(4, name="conv")]), GOOD, devices=HERE)
    with pytest.raises(TypeError, match="`model` must be a keras.Model"):
        ct.distribute.place(layers.Dense(4), GOOD, devices=HERE)


def test_models_of_xla():
    model = network()
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=False"):
        ct.distribute.place(model, GOOD, devices=HERE)


def test_a_model_is_placed_once_and_taken_back():
    model = compiled(network())
    with pytest.raises(ValueError, match=r"`model` must be placed"):
        ct.distribute.unplace(model)
    ct.distribute.place(model, GOOD, 2, devices=HERE)
    with pytest.raises(ValueError, match="placed already"):
        ct.distribute.place(model, GOOD, devices=HERE)
    ct.distribute.unplace(model)
    plain = compiled(network())
    losses = [
        one.fit(*data(), batch_size=4, epochs=2, shuffle=False, verbose=0).history["loss"]
        for one in (model, plain)
    ]
    assert losses[0] == losses[1]
    assert "call" not in vars(model) and "train_step" not in vars(model)


@pytest.mark.long("True")
@pytest.mark.parametrize("placed_first", [True, False])
def test_compression_and_stages_come_and_go_in_any_order(placed_first):
    model = compiled(network())
    for restores in (True, False):
        if placed_first:
            ct.distribute.place(model, GOOD, 2, devices=HERE)
            ct.compress_model(model)
        else:
            ct.compress_model(model)
            ct.distribute.place(model, GOOD, 2, devices=HERE)
        model.fit(*data(), batch_size=4, verbose=0)
        for undo in (
            (ct.restore_model, ct.distribute.unplace)
            if restores
            else (ct.distribute.unplace, ct.restore_model)
        ):
            undo(model)
            model.fit(*data(), batch_size=4, verbose=0)
    assert "train_step" not in vars(model)


def test_too_few_samples_say_what_to_do():
    model = compiled(network())
    ct.distribute.place(model, GOOD, 4, devices=HERE)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a sample for each of 4 microbatches"):
        model.fit(*data(), batch_size=10, verbose=0)  # the last batch has two


def test_sums_over_samples_are_no_means():
    model = compiled(network(), reduction="sum")
    with pytest.raises(
        ValueError, match="`microbatches` must be 1 for 'functional.*it is no mean over samples"
    ):
        ct.distribute.place(model, GOOD, 2, devices=HERE)
    model = compiled(network())
    ct.distribute.place(model, GOOD, 2, devices=HERE)
    compiled(model, reduction="sum")
    with pytest.raises(ValueError, match="must be means over samples.*sum"):
        model.fit(*data(), batch_size=4, verbose=0)


def test_masks_go_along_but_not_with_microbatches():
    random = np.random.default_rng(0)
    x, y = random.integers(0, 3, (8, 5)), random.integers(0, 4, (8, 5))
    stages = [Stage(("words",), (0, 1)), Stage(("out",), (1,))]
    losses = []

    def words():
        keras.utils.set_random_seed(0)
        parts = [layers.Embedding(3, 8, mask_zero=True, name="words"), layers.Dense(4, name="out")]
        return keras.Sequential([keras.Input((5,), dtype="int32"), *parts])

    with pytest.raises(ValueError, match="the outputs have a mask"):
        ct.distribute.place(compiled(words()), stages, 2, devices=HERE)
    model = words()
    ct.distribute.place(model, stages, 2, devices=HERE)  # whose loss is not known yet
    with pytest.raises(ValueError, match="must have no mask"):
        compiled(model).fit(x, y, batch_size=8, verbose=0)
    for microbatches in (0, 1):
        model = compiled(words())
        if microbatches:
            ct.distribute.place(model, stages, microbatches, devices=HERE)
        losses.append(model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-6)


def test_weights_are_saved_and_the_optimizer_goes_on(tmp_path):
    one, other = compiled(network()), compiled(network())
    for model in (one, other):
        model.fit(*data(), batch_size=4, shuffle=False, verbose=0)
    ct.distribute.place(other, GOOD, 2, devices=HERE)
    losses = [
        model.fit(*data(), batch_size=4, shuffle=False, verbose=0).history["loss"] for model in (one, other)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    other.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        loaded.predict(data()[0], verbose=0), other.predict(data()[0], verbose=0), rtol=1e-5
    )
