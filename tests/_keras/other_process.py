"""What a process must do first, or needs two devices for. Prints its findings; TF_CONFIG names two workers."""

import json

import numpy as np
import tensorflow as tf
from tiny import network

from tf_comptrain import _keras


def connected(found):
    before = _keras.has_run()
    strategy = _keras.connect_workers()
    found["has run"] = [before, _keras.has_run()]
    found["are workers"] = _keras.are_workers(strategy)
    found["number"] = _keras.worker_number(strategy)
    return strategy


def told(strategy, found):
    number = found["number"]
    found["largest"] = _keras.largest(strategy, 10 * number + 3)
    found["from first"] = _keras.from_first(strategy, b"" if number else b"what the first has").decode()
    own = [np.array([10 * number, 10 * number + 1]), np.array([number + 0.5], np.float32)]
    found["of all"] = [[part.tolist() for part in parts] for parts in _keras.of_all_workers(strategy, own)]
    with strategy.scope():
        each = tf.Variable(0.0, synchronization=tf.VariableSynchronization.ON_READ)
        same = tf.Variable(7.0)
    parts = _keras.replica_parts(each)
    found["parts"] = [part is not None for part in parts]
    parts[number].assign(float(number))
    found["values"] = [float(value) for value in _keras.replica_values([each, same])]


def moved(found):
    model = network()
    _keras.move_slots(model)
    weight, *others = model.trainable_variables
    optimizer = model.optimizer
    before = weight.numpy(), others[0].value
    device = weight.value.device.replace("CPU:0", "CPU:1")
    _keras.move_weight(weight, device, optimizer)
    pairs = [(v, _keras.momentum_slot(optimizer, v)) for v in (weight, others[0], others[-1])]
    found["devices"] = [[one.value.device == device for one in pair] for pair in pairs]
    found["values kept"] = np.array_equal(weight.numpy(), before[0])
    found["weight left alone"] = others[0].value is before[1]


if __name__ == "__main__":
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    found = {}
    told(connected(found), found)
    moved(found)
    print(json.dumps(found))
