"""AdaptiveErrorBound under XLA, where the bits of a value are part of the compiled step."""

import numpy as np
import pytest
from models import compiled, images, small_cnn
from needs_xla import needs_xla
from tensorflow import keras

import tf_comptrain as ct
from tf_comptrain.compression.instrumentation import instrumentation

pytestmark = needs_xla


class Epochs(keras.callbacks.Callback):
    """Bits of each site, and the train function, at the end of each epoch, before bounds are looked at."""

    def __init__(self):
        super().__init__()
        self.bits, self.functions = [], []

    def on_epoch_end(self, epoch, logs=None):
        self.bits.append([site.bits for site in instrumentation(self.model).sites().values()])
        self.functions.append(self.model.train_function)

    @property
    def compiled_after(self):
        """Numbers of the epochs, from 1 on, after which the step was compiled anew."""
        pairs = enumerate(zip(self.functions, self.functions[1:]), 1)
        return [epoch for epoch, (before, after) in pairs if before is not after]


def trained(epochs, jit=True, **how):
    keras.utils.set_random_seed(0)
    model = compiled(small_cnn(), keras.optimizers.SGD(0.01), jit_compile=jit)
    ct.compress_model(model)
    x, y = images(64)
    log = Epochs()
    how = {"interval": 2, "warmup": 1, "smoothing": 0.0, **how}
    callbacks = [log, ct.AdaptiveErrorBound(**how)]
    history = model.fit(x, y, 16, epochs, verbose=0, shuffle=False, callbacks=callbacks)
    assert np.isfinite(history.history["loss"]).all()
    return model, log


def test_bits_follow_bounds_that_are_tightened():
    model, log = trained(4, tolerance=0.02)
    assert all(after >= before for before, after in zip(log.bits[0], log.bits[-1]))
    assert sum(log.bits[-1]) > 1.2 * sum(log.bits[0])
    assert instrumentation(model).bytes_out_of_date() < 0.1
    assert 1 in log.compiled_after and 3 not in log.compiled_after


@pytest.mark.long
def test_bits_follow_bounds_that_are_loosened():
    _, log = trained(3, tolerance=2.0, limits=(0.5, 2.0))
    assert sum(log.bits[-1]) < 0.9 * sum(log.bits[0])


@pytest.mark.long("no change*")
@pytest.mark.parametrize(
    "how", [{"warmup": 10**6}, {"jit": False, "tolerance": 0.02}], ids=["no change of bounds", "executor"]
)
def test_where_nothing_is_compiled_anew(how):
    model, log = trained(3, **how)
    assert log.compiled_after == []
    assert instrumentation(model).bytes_out_of_date() == 0


@pytest.mark.long
def test_after_the_last_epoch_nothing_is_compiled():
    model, log = trained(1, tolerance=0.02)
    assert instrumentation(model).bytes_out_of_date() > 0.1
    assert model.train_function is log.functions[-1]
