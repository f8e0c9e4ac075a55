"""`_keras/optimizers.py`: scale of the loss, momentum, schedule, count of steps."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_comptrain import _keras


def test_scale_of_the_loss():
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), 8.0)
    scaled.build([keras.Variable(1.0)])
    assert _keras.loss_scale(scaled) == 8.0 and _keras.loss_scale(keras.optimizers.SGD()) == 1.0


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Nadam", "Adamax", "Lamb"])
def test_what_optimizers_keep_of_gradients(name):
    optimizer = getattr(keras.optimizers, name)(0.1, **({"momentum": 0.9} if name == "SGD" else {}))
    other, variable = keras.Variable([1.0]), keras.Variable([[1.0, 2.0]])
    assert _keras.momentum_slot(optimizer, variable) is None  # not built
    optimizer.build([other, variable])
    optimizer.apply([tf.zeros(1), tf.ones((1, 2))], [other, variable])
    slot = _keras.momentum_slot(optimizer, variable)
    assert slot.shape == (1, 2) and np.all(slot.numpy() != 0.0)
    assert _keras.momentum_slot(optimizer, keras.Variable([1.0])) is None  # not its variable


def test_a_schedule_follows_another_rate():
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 10, 0.0)
    optimizer = keras.optimizers.SGD(schedule)
    scaled = keras.optimizers.LossScaleOptimizer(optimizer)
    assert _keras.has_schedule(scaled) and not _keras.has_schedule(keras.optimizers.SGD(0.1))
    assert _keras.steps_of(scaled) == 0
    variable = keras.Variable(1.0)
    optimizer.build([variable])
    optimizer.iterations.assign(4)
    assert _keras.steps_of(scaled) == 4
    assert _keras.override_rate(optimizer, lambda rate, steps: 100.0 * rate(steps + 1))
    assert not _keras.override_rate(optimizer, lambda rate, steps: 0.0)
    np.testing.assert_allclose(optimizer.learning_rate, 50.0, rtol=1e-6)
    optimizer.apply([tf.constant(1.0)], [variable])
    np.testing.assert_allclose(variable.numpy(), -49.0, rtol=1e-6)
    _keras.reset_rate(optimizer)
    np.testing.assert_allclose(optimizer.learning_rate, 0.5, rtol=1e-6)
    _keras.reset_rate(None)
