"""`_keras/train_step.py` and `_keras/overridden_step.py`: loss, optimizer, variables, whose step runs."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny import batch, fit, network

from tf_comptrain import _keras

layers = keras.layers


class Own(keras.Model):
    """A train step of its own, with variables that Keras does not know."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)
        self.critic = [keras.optimizers.SGD(0.1)]
        self.mine, self.random = tf.Variable(1.0), tf.random.Generator.from_seed(1)

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def own():
    model = Own()
    model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    return model


def test_questions_about_a_model():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        mirrored = network()
    assert _keras.is_compiled(network()) and not _keras.is_compiled(network(compiled=False))
    assert _keras.has_own_train_step(own()) and not _keras.has_own_train_step(network())
    assert _keras.has_strategy(mirrored) and not _keras.has_strategy(network())
    assert _keras.steps_at_once(network(steps_per_execution=3)) == 3


def test_a_model_has_to_be_compiled():
    _keras.require_compiled(network())
    with pytest.raises(ValueError, match="is not compiled: call model.compile"):
        _keras.require_compiled(network(compiled=False))


def test_bytes_of_variables():
    half = keras.Variable(np.zeros((3, 2)), dtype="bfloat16")
    assert _keras.bytes_of() == 0
    assert _keras.bytes_of(half, tf.Variable(1.0), tf.Variable(tf.zeros((2, 5), tf.int64))) == 12 + 4 + 80


@pytest.mark.parametrize("make", [network, own, lambda: network(steps_per_execution=2)])
def test_a_step_runs_by_itself(make):
    model = make()
    run = _keras.train_step_runner(model, *batch())
    steps = int(model.optimizer.iterations)
    before = model.get_weights()
    run()
    assert model.optimizer.iterations == steps + _keras.steps_at_once(model)
    assert not np.array_equal(before[0], model.get_weights()[0])


def test_variables_are_made_before_a_step():
    model = keras.Sequential([layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", jit_compile=False)
    _keras.build_optimizer(model)
    assert not model.optimizer.built  # it has no weights
    _keras.build_for_step(model, *batch())
    assert model.optimizer.built and len(model.optimizer.momentums) == 2
    assert model.optimizer.iterations == 0
    users = own()
    _keras.build_for_step(users, *batch())
    assert users.optimizer.built and len(users.weights) == 2 and users.optimizer.iterations == 0
    built = network()
    _keras.build_optimizer(built)
    assert len(built.optimizer.momentums) == 4


def test_a_step_is_traced_without_running():
    model = network()
    _keras.build_for_step(model, *batch())
    before = model.get_weights()
    traces = []

    def results():
        traces.append(tf.executing_eagerly())
        return tf.constant(7.0)

    step = _keras.trace_train_step(model, *batch(), results)
    assert traces == [False]
    assert np.array_equal(model.get_weights()[0], before[0])
    assert step() == 7.0
    assert not np.array_equal(model.get_weights()[0], before[0])
    assert model.optimizer.iterations == 1


def test_a_lowered_step_is_a_program_and_runs_nothing():
    model = network()
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
    _keras.build_for_step(model, *batch())
    before = model.get_weights()
    program = _keras.lowered_train_step(model, *batch())
    assert isinstance(program, bytes) and b"dot" in program
    assert np.array_equal(model.get_weights()[0], before[0]) and model.optimizer.iterations == 0


def test_a_step_under_the_users_tf_function_is_traced_anew():
    class Traced(Own):
        train_step = tf.function(Own.train_step)

    model, calls = Traced(), []
    model.compile(keras.optimizers.SGD(0.1), jit_compile=False)

    def update(update_step, *args):
        calls.append(_keras.scope_says())
        return update_step(*args)

    _keras.build_for_step(model, *batch())
    model.optimizer.build(model.trainable_variables)
    _keras.override_train_step(model, update)
    for traces in (1, 2):
        _keras.trace_train_step(model, *batch())
        assert calls == 2 * traces * [True]


def test_a_train_step_is_overridden():
    model, updates = network(), []

    def update(update_step, gradient, weight, rate):
        updates.append((id(weight), _keras.scope_says()))
        return update_step(gradient, weight, rate)

    plain = network()
    fit(plain)
    _keras.build_for_step(model, *batch())
    _keras.override_train_step(model, update)
    fit(model)
    assert updates == [(id(weight), True) for weight in _keras.trainable_variables(model)]
    assert "update_step" not in vars(model.optimizer)
    assert all(map(np.array_equal, model.get_weights(), plain.get_weights()))
    assert _keras.is_overridden(model)
    _keras.reset_train_step(model)
    assert not _keras.is_overridden(model)
    _keras.forget_traces(model)
    fit(model)
    assert len(updates) == 4


@pytest.mark.parametrize("wrap", [lambda step: step, tf.function], ids=["python", "function"])
def test_a_train_step_of_the_instance_is_the_one_that_runs(wrap):
    model, updates = network(), []

    def step(data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = 1.0 + tf.reduce_mean((model(x) - y) ** 2)
        variables = model.trainable_variables
        model.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"own": loss}

    own = model.train_step = wrap(step)
    assert _keras.has_own_train_step(model)
    for _ in range(2):  # compressed again
        _keras.override_train_step(model, lambda of, *args: updates.append(of) or of(*args))
    assert _keras.has_own_train_step(model)
    assert list(model.fit(*batch(), verbose=0).history) == ["own"] and updates
    updates.clear()
    _keras.trace_train_step(model, *batch())
    assert len(updates) == 4
    with _keras.plain_train_step(model):
        assert model.train_step is own
    _keras.reset_train_step(model)
    assert model.train_step is own and "_comptrain_own_step" not in vars(model)


def test_losses_and_metrics_are_built_anew_after_other_targets():
    keras.utils.set_random_seed(0)
    x = keras.Input((4,))
    model = keras.Model(x, {name: keras.layers.Dense(2, name=name)(x) for name in "ab"})
    model.compile("sgd", {"a": "mse"}, jit_compile=False)
    some, more = ({name: np.ones((3, 2), "float32") for name in names} for names in ("a", "ab"))
    with _keras.targets_forgotten(model):
        model.fit(np.ones((3, 4)), more, verbose=0)
    model.fit(np.ones((3, 4)), some, verbose=0)
    built = model._compile_loss
    with _keras.targets_forgotten(model):
        model.fit(np.ones((3, 4)), some, verbose=0)
    assert model._compile_loss is built


def test_the_train_step_is_plain_for_a_while():
    model = network()
    _keras.override_train_step(model, lambda update_step, *args: update_step(*args), is_exact=False)
    before = dict(vars(model))
    with _keras.plain_train_step(model):
        assert "train_step" not in vars(model)
    assert vars(model) == before


def without_some(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


class OwnDecay(keras.optimizers.SGD):
    def _apply_weight_decay(self, variables):
        for variable in variables:
            variable.assign(0.5 * variable)


DECAYS = {
    "AdamW": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.5),
    "without biases": lambda: without_some(keras.optimizers.AdamW(0.1, weight_decay=0.5)),
    "a schedule": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), momentum=0.9, weight_decay=0.5
    ),
    "every second step": lambda: keras.optimizers.AdamW(0.1, gradient_accumulation_steps=2),
    "scaled losses": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW(0.1), 8.0),
    "an own rule": lambda: OwnDecay(0.1),
}


@pytest.mark.long("*-XLA", "AdamW-*", but=["AdamW-XLA"])
@pytest.mark.parametrize("jit", [False, True], ids=["executor", "XLA"])
@pytest.mark.parametrize("optimizer", DECAYS)
def test_weights_decay_as_in_keras(optimizer, jit):
    """Each with its own update: to the bit, since a weight's decay reads that weight alone."""
    models = [network(optimizer=DECAYS[optimizer]()) for _ in range(2)]
    _keras.build_for_step(models[1], *batch())
    _keras.override_train_step(models[1], lambda update_step, *args: update_step(*args), is_exact=False)
    for model in models:
        model.jit_compile = jit
        fit(model, steps=3)
    plain, ours = (model.get_weights() for model in models)
    if jit:
        assert all(np.allclose(a, b, rtol=1e-6, atol=0) for a, b in zip(plain, ours))
    else:
        assert all(map(np.array_equal, plain, ours))
    assert "_apply_weight_decay" not in vars(models[1].optimizer)


IN_PLACE = {
    "Adam": lambda: keras.optimizers.Adam(0.1, beta_1=0.8, epsilon=1e-3),
    "AdamW": lambda: without_some(keras.optimizers.AdamW(0.1, weight_decay=0.5)),
    "AMSGrad": lambda: keras.optimizers.Adam(0.1, amsgrad=True),
    "SGD": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "Nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.1),
    "every second step": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
}
ONE_OPERATION = {
    "Adam": "ResourceApplyAdam",
    "AdamW": "ResourceApplyAdam",
    "every second step": "ResourceApplyAdam",
    "SGD": "ResourceApplyGradientDescent",
    "momentum": "ResourceApplyKerasMomentum",
    "Nesterov": "ResourceApplyKerasMomentum",
}


@pytest.mark.long("AMSGrad", "momentum")
@pytest.mark.parametrize("optimizer", IN_PLACE)
def test_weights_are_updated_in_place_as_in_keras(optimizer):
    """Five steps, since Adam's first ones are of the size of the learning rate whatever the gradient is."""
    models = [network(optimizer=IN_PLACE[optimizer]()) for _ in range(2)]
    _keras.build_for_step(models[1], *batch())
    kinds = set()

    def update(update_step, *args):
        result = update_step.in_place(*args)
        kinds.update(op.type for op in tf.compat.v1.get_default_graph().get_operations())
        return result

    _keras.override_train_step(models[1], update, is_exact=False)
    models[0].run_eagerly = True  # which takes less time than a trace
    for model in models:
        for _ in range(5):
            fit(model)
    plain, ours = (model.get_weights() + [v.numpy() for v in model.optimizer.variables] for model in models)
    for a, b in zip(plain, ours):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)
    assert {kind for kind in kinds if kind.startswith("ResourceApply")} == {ONE_OPERATION.get(optimizer)} - {
        None
    }


def test_a_weight_update_is_what_keras_does():
    models = [network(optimizer=DECAYS["AdamW"]()) for _ in range(2)]
    gradients = [tf.ones_like(weight) for weight in models[0].trainable_variables]
    for model in models:
        model.optimizer.build(model.trainable_variables)
    models[0].optimizer.apply(gradients)
    update = _keras.WeightUpdate(models[1].optimizer)
    update.decay_with_updates(models[1].trainable_variables)
    for gradient, weight in zip(gradients, models[1].trainable_variables):
        update(gradient, weight.value, models[1].optimizer.learning_rate)
    assert all(map(np.array_equal, models[0].get_weights(), models[1].get_weights()))


def test_calls_and_losses_are_those_of_keras():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, layers.Dropout(0.5, seed=1)(layers.Dense(64)(inputs)))
    model.compile("sgd", "mse")
    x, _ = batch()
    assert np.sum(_keras.call_in_training(model, x) == 0.0) > 0  # dropped
    assert _keras.call_in_training(own(), x).shape == (4, 2)  # takes no `training`
    model = network(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), 8.0))
    (x, y), weight = batch(), tf.constant([1.0, 0.0, 0.0, 0.0])
    y_pred = model(x)
    loss = _keras.loss_in_training(model, x, y, y_pred, weight)
    np.testing.assert_allclose(loss, tf.reduce_mean((y_pred - y)[0] ** 2) / 4.0, rtol=1e-5)


def test_losses_join_the_mean_of_the_logs():
    model = network()
    _keras.note_loss(model, 3.0, 2)
    _keras.note_loss(model, 6.0, 1)
    assert model.metrics[0].name == "loss" and model.metrics[0].result() == 4.0


def test_variables_of_a_training():
    inputs = keras.Input((3,))
    x = layers.BatchNormalization()(layers.Dropout(0.5)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(x))
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], jit_compile=False)
    fit(model)
    found = [variable.path for variable in _keras.all_variables(model)]
    assert len(found) == len(set(found)) == 6 + 1 + 2 + 4 + 4  # weights, seed, counters, slots, metrics
    moving = [variable.path.rpartition("/")[2] for variable in _keras.moving_statistics(model)]
    assert moving == ["moving_mean", "moving_variance"]
    assert _keras.weight_names(model)[0].endswith("/gamma: (3,)")
    assert len(_keras.weight_names(model)) == 6 and _keras.weight_names(own()) == []
    assert _keras.unnumbered("block_2/conv2d_3_1/kernel: (3,)") == "block/conv2d/kernel: (3,)"
    weights = _keras.trainable_variables(model)
    assert len(weights) == 4 and all(isinstance(weight, tf.Variable) for weight in weights)


def test_variables_that_only_the_users_step_knows():
    model = own()
    keras.random.uniform((1,))  # from the seed of no layer
    _keras.build_for_step(model, *batch())
    (critic,) = model.critic
    critic.build(model.trainable_variables)
    found = {id(variable) for variable in _keras.step_variables(model)}
    expected = [model.mine, model.random.state, *critic.variables, *_keras.all_variables(model)]
    assert {id(variable) for variable in expected} < found  # and Keras' seed
    assert {id(optimizer) for optimizer in _keras.optimizers_of(model)} == {id(model.optimizer), id(critic)}


def test_variables_behind_those_of_keras():
    """Of several processes: `other_process.py`."""
    variable, plain = keras.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])
    assert _keras.parts_of(variable) == [variable.value] and _keras.parts_of(plain)[0] is plain
    assert _keras.replica_parts(variable) == [variable]
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        mirrored = keras.Variable([1.0, 2.0])
        own_of_each = tf.Variable([5.0, 6.0], synchronization=tf.VariableSynchronization.ON_READ)
    assert _keras.parts_of(mirrored)[0] is mirrored.value.values[0]
    assert _keras.replica_parts(mirrored)[0] is mirrored
    assert _keras.replica_parts(own_of_each)[0] is own_of_each.values[0]
    values = _keras.replica_values([variable, own_of_each])
    assert np.array_equal(values, [[1.0, 2.0], [5.0, 6.0]])
    assert np.array_equal(_keras.mean_of_replicas(own_of_each), [5.0, 6.0])


def test_buffers_have_one_more_owner(monkeypatch):
    variable, read = keras.Variable([1.0, 2.0]), tf.ones(2)
    monkeypatch.setattr(type(variable.value), "read_value", lambda self: read)
    before = sys.getrefcount(read)
    _keras.abandon_buffers([variable, variable.value])
    assert sys.getrefcount(read) == before + 2


def test_variables_by_handle():
    kernel, bias = keras.Variable([1.0]), tf.Variable(2.0)
    assert _keras.by_handle([kernel, bias]) == {id(kernel.value.handle): kernel, id(bias.handle): bias}
