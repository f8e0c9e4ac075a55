"""Storage "offload": what waits in a file comes back as it was, leaves memory meanwhile, and leaves nothing behind."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from models import chain, compiled, images, optimized_graph
from tensorflow import keras

import tf_comptrain as ct

layers = keras.layers
SIZE, BATCH, STEPS = 32, 16, 8
ROOT = Path(__file__).resolve().parents[2]
FILE = "tf_comptrain-*.spill"


def network(normalize=False):
    """Convolution, pooling, dropout, dense, perhaps normalization: tensors of 2 MiB, and small ones."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(32, 3, padding="same", use_bias=False, name="conv1")(inputs)
    x = layers.BatchNormalization(name="bn1")(x) if normalize else x
    x = layers.ReLU(name="relu1")(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2")(x)
    x = layers.Conv2D(32, 3, padding="same", activation="tanh", name="conv3")(x)
    x = layers.MaxPooling2D(3, 2, name="pool")(x)
    x = layers.Dropout(0.25, seed=1, name="dropout")(x)
    return compiled(keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)), name="offloaded"))


def trained(storage, steps, **how):
    model = network(**how)
    ct.compress_model(model, storage=storage)
    x, y = images(BATCH, SIZE)
    losses = [float(model.train_on_batch(x, y)) for _ in range(steps)]
    return model, losses


@pytest.fixture(scope="module")
def kept():
    return trained("keep", STEPS)


@pytest.mark.parametrize("codec", ["zvc", None])
def test_lossless_training_is_bit_equal(codec, kept, tmp_path):
    storage = ct.Offload(codec=codec, folder=tmp_path)
    model, losses = trained(storage, STEPS)
    assert losses == kept[1]
    for ours, theirs in zip(model.variables, kept[0].variables):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)
    moved = storage.traffic()
    assert any("relu1" in site for site in moved) and any("conv2" in site for site in moved)
    for site in moved.values():
        assert site.tensors == STEPS and site.written_bytes >= site.read_bytes > 0
        assert site.plain_bytes >= STEPS << 20
        assert codec is not None or site.stream_bytes == site.plain_bytes
    assert {row.storage for row in ct.report(model).rows} >= {"offload"}


@pytest.mark.long("False")
@pytest.mark.parametrize("optimized", [True, False])
def test_normalization_is_bit_equal(optimized, tmp_path):
    """TensorFlow's optimizer rewrites formulas by what stands around them; sums are in the order that it gives them."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": optimized})
    try:
        kept, losses = trained("keep", 5, normalize=True)
        model, found = trained(ct.Offload(folder=tmp_path), 5, normalize=True)
    finally:
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": True})
    assert found == losses
    for ours, theirs in zip(model.variables, kept.variables):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)


def test_with_a_bound_it_trains_as_streams_do(kept, tmp_path):
    _, losses = trained(ct.Offload(codec="plane", folder=tmp_path), STEPS)
    assert losses != kept[1]
    np.testing.assert_allclose(losses[:3], kept[1][:3], rtol=0.05)


def test_by_layer_and_by_operation(tmp_path):
    by_name = ct.Offload(folder=tmp_path)
    model, _ = trained({"conv1": by_name, "offloaded_1/conv2": "compress"}, 1)
    rows = {row.layer: row.storage for row in ct.report(model).rows}
    assert [name for name, storage in rows.items() if storage == "offload"] == [
        name for name in rows if "conv1" in name
    ]


def test_one_tensor_is_moved_once_however_many_read_it(tmp_path):
    """x is read by the gradients of three products."""
    storage = ct.Offload(codec=None, folder=tmp_path)
    model = keras.Sequential([keras.Input((1024,))])
    model.add(layers.Dense(1024, use_bias=False, name="first"))
    weights = [tf.Variable(tf.random.stateless_normal((1024, 1024), (k, k))) for k in range(3)]
    ct.compress_model(model, storage=storage)

    def loss(x):
        h = tf.tanh(model(x, training=True))
        return sum(tf.reduce_mean(tf.sin(h @ w) @ w) for w in weights)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            value = loss(x)
        return tape.gradient(value, [*model.trainable_variables, *weights])

    x = tf.random.stateless_normal((1024, 1024), (1, 2))
    found = step(x)
    moved = next(traffic for site, traffic in storage.traffic().items() if "Tanh" in site)
    assert moved.tensors == 1 and moved.read_bytes <= moved.written_bytes == 1024 * 1024 * 4
    ct.restore_model(model)
    plain = tf.function(step.python_function)(x)
    for ours, theirs in zip(found, plain):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_memory_falls(tmp_path):
    """Of 16 convolutions of 4.2 MB each; two in flight, two buffers, and the layer that works."""

    def peak(storage):
        model = chain(16, size=64, filters=16)
        ct.compress_model(model, storage=storage)
        x = np.random.default_rng(0).normal(size=(16, 64, 64, 16)).astype("float32")
        return ct.memory.measure_step(model, x, np.zeros((16, 16), "float32"), steps=2)

    kept, held = peak("keep"), peak(ct.Offload(codec=None, folder=tmp_path))
    tensor = 16 * 64 * 64 * 16 * 4
    assert kept.peak_bytes > 16 * tensor
    assert held.peak_bytes < kept.peak_bytes - 7 * tensor
    assert held.saved_bytes < kept.saved_bytes / 16


def test_what_gradients_make_of_a_tensor_is_not_moved(tmp_path):
    """The gradient of a variance subtracts the mean: of its input, which comes back, once."""
    storage = ct.Offload(codec=None, folder=tmp_path)
    trained(storage, 1, normalize=True)
    assert sorted(site.split("/")[1] for site in storage.traffic()) == [
        "conv1_1",
        "conv2_1",
        "conv3_1",
        "relu1_1",
    ]


@pytest.mark.long
def test_of_two_branches_one_ends_before_the_other_begins(tmp_path):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((SIZE, SIZE, 16))
    branches = []
    for side in ("left", "right"):
        x = inputs
        for place in ("first", "last"):
            x = layers.Conv2D(32, 1, activation="tanh", name=f"{side}_{place}")(x)
        branches.append(x)
    x = layers.GlobalAveragePooling2D()(layers.Add()(branches) ** 2)
    model = compiled(keras.Model(inputs, layers.Dense(10)(x)))
    ct.compress_model(model, storage=ct.Offload(codec=None, folder=tmp_path))
    nodes = optimized_graph(model, *images(BATCH, SIZE, 16))

    def layer_of(node):
        while node.op != "Comptrain>Spill":
            node = nodes[node.input[0].split(":")[0]]
        return node.attr["site"].s.decode()

    def read(node):
        return [each.strip("^").split(":")[0] for each in node.input]

    def made_before(node):
        found, waiting = set(), [node]
        while waiting:
            new = [name for name in read(waiting.pop()) if name not in found]
            found.update(new)
            waiting += [nodes[name] for name in new if name in nodes]
        return found

    fetches = {layer_of(node): node for node in nodes.values() if node.op == "Comptrain>Fetch"}

    def comes_after_readers(later, earlier):
        """Whether what is held of one layer comes back after what reads that of another."""
        (fetch,) = (node for layer, node in fetches.items() if later in layer)
        (other,) = (node.name for layer, node in fetches.items() if earlier in layer)
        return {name for name, node in nodes.items() if other in read(node)} <= made_before(fetch)

    assert comes_after_readers("right_last", "left_first") or comes_after_readers("left_last", "right_first")


@pytest.mark.long
def test_the_report_of_memory_names_it(tmp_path):
    model = network()
    ct.compress_model(model, storage=ct.Offload(folder=tmp_path))
    found = ct.memory.report(model, BATCH, timeline=False)
    rows = [row for row in found.rows if row.storage == "offload"]
    assert rows and all(row.bytes == 0 and row.value_bytes >= 1 << 20 for row in rows)
    assert "offload" in str(found)


# --- What users give --------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"tier": "host", "folder": "."}, "`folder` goes with tier 'file'"),
        ({"tier": "cloud"}, "`tier` must be None, 'file' or 'host'"),
        ({"codec": "deflate"}, "`codec` must be None, a Codec or one of 'plane'"),
        ({"inflight": "much"}, "`inflight` must be bytes"),
        ({"folder": "/nowhere"}, "`folder` must be a folder that can be written to"),
    ],
)
def test_arguments(how, message):
    with pytest.raises(ValueError, match=message):
        ct.Offload(**how)


@pytest.mark.long("False")
@pytest.mark.parametrize("is_compiled_first", [True, False])
def test_under_xla_it_says_so_once_and_tensors_stay(is_compiled_first, tmp_path, caplog):
    keras.utils.set_random_seed(0)
    dense = [layers.Dense(256, activation="tanh"), layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *dense])
    if is_compiled_first:
        compiled(model, jit_compile=True)
    storage = ct.Offload(codec="plane", folder=tmp_path)
    report = ct.compress_model(model, storage=storage)
    assert is_compiled_first == bool(report.rows and "stay in memory" in caplog.text)
    compiled(model, jit_compile=True)
    for count in (256, 128):  # two traces
        model.train_on_batch(tf.ones((count, 64)), tf.zeros(count))
    assert caplog.text.count("stay in memory: the step is compiled with XLA") == 1
    assert "no memory but the device's; jit_compile=False offloads them" in caplog.text
    assert "compress" in {row.storage for row in report.rows} and not storage.traffic()


# --- Faults -----------------------------------------------------------------


def spill_file(folder):
    (file,) = folder.glob(FILE)
    return file


def step_of(storage):
    model = network()
    ct.compress_model(model, storage=storage)
    x, y = images(BATCH, SIZE)
    return model, lambda: float(model.train_on_batch(x, y))


def test_a_folder_that_is_gone(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    _, step = step_of(ct.Offload(folder=folder))
    folder.rmdir()
    with pytest.raises(tf.errors.FailedPreconditionError, match="gone' of offloaded tensors.*make it"):
        step()
    folder.mkdir()
    assert np.isfinite(step())


def test_a_folder_that_is_read_only(monkeypatch):
    monkeypatch.setattr(os, "access", lambda *unused: True)  # as if it had become so since
    _, step = step_of(ct.Offload(folder="/proc"))
    with pytest.raises(tf.errors.FailedPreconditionError, match="'/proc'.*`folder`"):
        step()


def test_a_full_disk(tmp_path):
    _, step = step_of(ct.Offload(codec=None, folder=tmp_path, inflight=1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(tf.errors.FailedPreconditionError, match="cannot be written to.*make room"):
            step()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert np.isfinite([step() for _ in range(2)]).all()


class _Damage(layers.Layer):
    """Flips a bit of every byte of a file when the gradient passes."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.active = True

    def call(self, x):
        @tf.custom_gradient
        def damaging(x):
            def grad(dy):
                with tf.control_dependencies([tf.py_function(self.damage, [dy], [])]):
                    return tf.identity(dy)

            return tf.identity(x), grad

        return damaging(x)

    def damage(self, dy):
        if self.active:
            file = spill_file(self.folder)
            flipped = np.frombuffer(file.read_bytes(), "uint8") ^ 4
            # In place: it is read meanwhile, and has its length all the time.
            with file.open("r+b") as opened:
                opened.write(flipped.tobytes())


def test_a_flipped_byte_never_becomes_a_gradient(tmp_path):
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((SIZE, SIZE, 16))
    for k in range(4):
        x = layers.Conv2D(16, 3, padding="same", activation="relu", name=f"conv{k}")(x)
    damage = _Damage(tmp_path)
    outputs = damage(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    ct.compress_model(model, storage=ct.Offload(codec=None, folder=tmp_path, inflight=1))
    x = np.random.default_rng(0).normal(size=(32, SIZE, SIZE, 16)).astype("float32")
    y = np.zeros((32, 16), "float32")
    with pytest.raises(tf.errors.DataLossError, match="not what was written"):
        model.train_on_batch(x, y)
    damage.active = False
    assert np.isfinite(float(model.train_on_batch(x, y)))


@pytest.mark.long
def test_many_steps_do_not_grow(tmp_path):
    """Failed ones included: what they held is free again."""
    storage = ct.Offload(codec=None, folder=tmp_path)
    fail = tf.Variable(False)
    model = chain(6, size=16, filters=64)
    ct.compress_model(model, storage=storage)
    x = tf.random.stateless_normal((16, 16, 16, 64), (1, 2))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True) ** 2)
            with tf.control_dependencies([tf.debugging.assert_equal(fail, False)]):
                loss = tf.identity(loss)
        return tape.gradient(loss, model.trainable_variables)

    def run(steps):
        for k in range(steps):
            fail.assign(k % 10 == 9)
            try:
                step()
            except tf.errors.InvalidArgumentError:
                assert k % 10 == 9
        return spill_file(tmp_path).stat().st_size, resident_bytes()

    first_file, first_memory = run(40)
    last_file, last_memory = run(160)
    assert storage.traffic() and last_file <= first_file + (2 << 20)
    assert last_memory < first_memory + (16 << 20)


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


CHILD = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import tf_comptrain as ct
from storage.test_offload import step_of
model, step = step_of(ct.Offload(folder={folder!r}))
step()
if {kill}:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
@pytest.mark.parametrize("kill", [False, True])
def test_a_process_that_ends_leaves_nothing(kill, tmp_path):
    code = CHILD.format(tests=str(ROOT / "tests"), folder=str(tmp_path), kill=kill)
    env = dict(os.environ, PYTHONPATH=str(ROOT), TF_CPP_MIN_LOG_LEVEL="2")
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.returncode == (-signal.SIGKILL if kill else 0), run.stderr
    assert len(list(tmp_path.glob(FILE))) == int(kill)
    _, step = step_of(ct.Offload(folder=tmp_path))
    step()
    assert len(list(tmp_path.glob(FILE))) == 1  # this process' own
