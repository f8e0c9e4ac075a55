"""Keras' public layers as cases of one contract, and a model that calls all of them in one step.

A step of that model, plain and compressed, gives what the contract compares: outputs, gradients of inputs and
weights, and states. Only the public API of both packages is used, so that any mechanism can be held to it.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow import keras

import tf_comptrain as ct

layers = keras.layers
BATCH = 8  # tensors of fewer elements are held as they are


class Case(NamedTuple):
    """One layer and what it is called on.

    Attributes:
      layer: Of keras.layers.
      config: Arguments of its constructor; a function makes those that are layers.
      shapes: Of one sample of each input; several make a list, or the first arguments where `spread`.
      mask: Name of the argument that takes a mask, and the shape of one sample of it.
      spread: Whether several inputs are arguments of their own.
      whole: For layers that take indices: how many there are.
      ways: Of being called; None: all that there are. Of layers with large graphs, each is called in some.
    """

    layer: str
    config: Any = {}
    shapes: tuple = ((6, 6, 4),)
    mask: tuple | None = None
    spread: bool = False
    whole: int | None = None
    ways: tuple[str, ...] | None = None


IMAGE, SEQUENCE, VOLUME, VECTOR = ((6, 6, 4),), ((12, 8),), ((4, 4, 4, 3),), ((96,),)
_BY_RANK = {"1D": SEQUENCE, "2D": IMAGE, "3D": VOLUME}


def _by_rank(names: str, config: dict, ranks: str = "1D 2D 3D") -> dict[str, Case]:
    return {
        f"{name}{rank}": Case(f"{name}{rank}", config, _BY_RANK[rank])
        for name in names.split()
        for rank in ranks.split()
    }


CASES = {
    "Dense": Case("Dense", {"units": 7, "activation": "relu"}, VECTOR),
    "Dense gelu": Case("Dense", {"units": 64, "activation": "gelu"}, VECTOR),
    "Dense tanh": Case("Dense", {"units": 64, "activation": "tanh"}, SEQUENCE),
    "Dense frozen": Case("Dense", {"units": 64, "trainable": False}, VECTOR),
    "Dense regularized": Case("Dense", {"units": 7, "kernel_regularizer": "l2"}, VECTOR),
    "EinsumDense": Case("EinsumDense", {"equation": "abc,cd->abd", "output_shape": (None, 5)}, SEQUENCE),
    "Embedding": Case("Embedding", {"input_dim": 9, "output_dim": 8}, ((12,),), whole=9),
    "Identity": Case("Identity"),
    "Masking": Case("Masking", {}, SEQUENCE),
    "Activation": Case("Activation", {"activation": "sigmoid"}),
    "Activation gelu": Case("Activation", {"activation": "gelu"}),
    "Activation silu": Case("Activation", {"activation": "silu"}),
    "Activation softmax": Case("Activation", {"activation": "softmax"}),
    "ReLU": Case("ReLU"),
    "LeakyReLU": Case("LeakyReLU"),
    "PReLU": Case("PReLU", {"alpha_initializer": "uniform"}),
    "ELU": Case("ELU"),
    "Softmax": Case("Softmax", {}, SEQUENCE, ("mask", (12, 8))),
    **_by_rank("Conv", {"filters": 6, "kernel_size": 3}, "2D"),
    **_by_rank("Conv", {"filters": 6, "kernel_size": 3, "activation": "relu"}, "1D 3D"),
    "Conv1DTranspose": Case("Conv1DTranspose", {"filters": 6, "kernel_size": 3}, SEQUENCE),
    "Conv2DTranspose": Case("Conv2DTranspose", {"filters": 6, "kernel_size": 3, "strides": 2}),
    "Conv3DTranspose": Case("Conv3DTranspose", {"filters": 3, "kernel_size": 2}, VOLUME),
    "DepthwiseConv1D": Case("DepthwiseConv1D", {"kernel_size": 3}, SEQUENCE),
    "DepthwiseConv2D": Case("DepthwiseConv2D", {"kernel_size": 3, "depth_multiplier": 2}),
    "SeparableConv1D": Case("SeparableConv1D", {"filters": 6, "kernel_size": 3}, SEQUENCE),
    "SeparableConv2D": Case("SeparableConv2D", {"filters": 6, "kernel_size": 3, "activation": "relu"}),
    **_by_rank("MaxPooling AveragePooling", {"pool_size": 2}),
    **_by_rank("GlobalMaxPooling GlobalAveragePooling", {}, "2D 3D"),
    "GlobalMaxPooling1D": Case("GlobalMaxPooling1D", {}, SEQUENCE),
    "GlobalAveragePooling1D": Case("GlobalAveragePooling1D", {}, SEQUENCE, ("mask", (12,))),
    **_by_rank("AdaptiveMaxPooling AdaptiveAveragePooling", {"output_size": 2}),
    **_by_rank("Cropping", {"cropping": 1}),
    **_by_rank("ZeroPadding", {"padding": 1}),
    **_by_rank("UpSampling", {"size": 2}),
    "Flatten": Case("Flatten"),
    "Permute": Case("Permute", {"dims": (2, 1, 3)}),
    "RepeatVector": Case("RepeatVector", {"n": 2}, VECTOR),
    "Reshape": Case("Reshape", {"target_shape": (12, 12)}),
    "ActivityRegularization": Case("ActivityRegularization", {"l2": 0.1}),
    "Dropout": Case("Dropout", {"rate": 0.4, "seed": 1}),
    **_by_rank("SpatialDropout", {"rate": 0.4, "seed": 1}),
    "AlphaDropout": Case("AlphaDropout", {"rate": 0.4, "seed": 1}),
    "GaussianDropout": Case("GaussianDropout", {"rate": 0.4, "seed": 1}),
    "GaussianNoise": Case("GaussianNoise", {"stddev": 0.4, "seed": 1}),
    "BatchNormalization": Case("BatchNormalization"),
    "BatchNormalization masked": Case("BatchNormalization", {}, SEQUENCE, ("mask", (12,))),
    "LayerNormalization": Case("LayerNormalization", {}, SEQUENCE),
    "GroupNormalization": Case("GroupNormalization", {"groups": 2}),
    "RMSNormalization": Case("RMSNormalization", {}, SEQUENCE),
    "UnitNormalization": Case("UnitNormalization", {}, SEQUENCE),
    "SpectralNormalization": Case("SpectralNormalization", lambda: {"layer": layers.Conv2D(6, 3)}),
    **{name: Case(name, {}, SEQUENCE * 2) for name in ("Add", "Average", "Concatenate", "Subtract")},
    **{name: Case(name, {}, SEQUENCE * 2) for name in ("Maximum", "Minimum", "Multiply")},
    "Dot": Case("Dot", {"axes": 2}, SEQUENCE * 2),
    "Attention": Case("Attention", {"use_scale": True}, SEQUENCE * 2),
    "Attention dropout": Case("Attention", {"dropout": 0.3, "seed": 1}, SEQUENCE * 3),
    "AdditiveAttention": Case("AdditiveAttention", {}, SEQUENCE * 2),
    "MultiHeadAttention": Case(
        "MultiHeadAttention", {"num_heads": 2, "key_dim": 8}, SEQUENCE * 2, ("attention_mask", (12, 12)), spread=True
    ),
    "MultiHeadAttention dropout": Case(
        "MultiHeadAttention", {"num_heads": 2, "key_dim": 8, "dropout": 0.3, "seed": 1}, SEQUENCE * 3, spread=True
    ),
    "GroupQueryAttention": Case(
        "GroupQueryAttention",
        {"head_dim": 8, "num_query_heads": 2, "num_key_value_heads": 1},
        SEQUENCE * 2,
        spread=True,
    ),
    "SimpleRNN": Case(
        "SimpleRNN", {"units": 8, "return_sequences": True}, SEQUENCE, ("mask", (12,)), ways=("mask",)
    ),
    "LSTM": Case(  # TensorFlow does not compute the default initializer in bfloat16
        "LSTM",
        {"units": 8, "return_sequences": True, "recurrent_initializer": "glorot_uniform"},
        SEQUENCE,
        ("mask", (12,)),
        ways=("positional", "mask"),
    ),
    "GRU": Case("GRU", {"units": 8, "return_sequences": True}, SEQUENCE, ("mask", (12,)), ways=("mask",)),
    "RNN": Case("RNN", lambda: {"cell": layers.GRUCell(8)}, SEQUENCE, ways=("positional",)),
    "StackedRNNCells": Case(
        "RNN", lambda: {"cell": [layers.LSTMCell(8), layers.SimpleRNNCell(8)]}, SEQUENCE, ways=("keyword",)
    ),
    "GRUCell": Case("GRUCell", {"units": 64}, ((96,), (64,)), spread=True),
    "SimpleRNNCell": Case("SimpleRNNCell", {"units": 64}, ((96,), (64,)), spread=True),
    "Bidirectional": Case(
        "Bidirectional", lambda: {"layer": layers.LSTM(8)}, SEQUENCE, ("mask", (12,)), ways=("mask",)
    ),
    "TimeDistributed": Case("TimeDistributed", lambda: {"layer": layers.Dense(7, activation="relu")}, ((4, 70),)),
    "ConvLSTM1D": Case("ConvLSTM1D", {"filters": 3, "kernel_size": 3}, ((4, 8, 3),), ways=("keyword",)),
    "ConvLSTM2D": Case(
        "ConvLSTM2D",
        {"filters": 3, "kernel_size": 3, "recurrent_initializer": "glorot_uniform"},
        ((3, 6, 6, 2),),
        ways=("positional",),
    ),
    "ConvLSTM3D": Case("ConvLSTM3D", {"filters": 2, "kernel_size": 3}, ((2, 4, 4, 4, 2),), ways=("keyword",)),
    "Rescaling": Case("Rescaling", {"scale": 2.0, "offset": 1.0}),
    "Normalization": Case("Normalization", {"mean": 0.5, "variance": 2.0}),
    # Keras' own do not take their input by keyword.
    "CenterCrop": Case("CenterCrop", {"height": 4, "width": 4}, ways=("positional",)),
    "Resizing": Case("Resizing", {"height": 9, "width": 9}, ways=("positional",)),
    "RandomFlip": Case("RandomFlip", {"seed": 1}, ((6, 6, 3),), ways=("positional",)),
    **{
        name: Case(name, {**config, "seed": 1, "value_range": (0, 1)}, ((6, 6, 3),), ways=("positional",))
        for name, config in {"RandomContrast": {"factor": 0.5}, "RandomBrightness": {"factor": 0.2}}.items()
    },
}  # fmt: skip
CLASSES = {case.layer for case in CASES.values()} | {"LSTMCell", "StackedRNNCells"}  # those inside RNN


@contextlib.contextmanager
def dtype_policy(policy: str):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@contextlib.contextmanager
def quick_graphs():
    """Without the graph's optimizer, which takes most of the time that a step takes the first time."""
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **before})


def ways_of(case: Case) -> list[str]:
    if case.ways is not None:
        return list(case.ways)
    ways = ["positional"]
    if not case.spread:
        ways.append("keyword")
    if case.mask is not None:
        ways.append("mask")
        if _parameters(case)[1] == case.mask[0]:
            ways.append("positional mask")
    return ways


def _parameters(case: Case) -> list[str]:
    return list(inspect.signature(getattr(layers, case.layer).call).parameters)[1:]


def arguments_of(name: str, seed: int = 0) -> tuple[list, Any]:
    """Input tensors of a case, and its mask."""
    case, rng = CASES[name], np.random.default_rng([seed, *name.encode()])
    tensors = []
    for shape in case.shapes:
        if case.whole is not None:
            tensors.append(tf.constant(rng.integers(0, case.whole, (BATCH, *shape)), tf.int32))
        else:
            tensors.append(tf.constant(rng.normal(size=(BATCH, *shape)), tf.float32))
    if case.mask is None:
        return tensors, None
    kept = rng.random((BATCH, *case.mask[1])) > 0.3
    kept[:, 0] = True
    return tensors, tf.constant(kept)


class Everything(keras.Model):
    """Calls every case's layer in every way, and goes on where one fails."""

    def __init__(self, names, ways=None):
        super().__init__()
        self.calls = [
            (name, way) for name in names for way in ways_of(CASES[name]) if ways is None or way in ways
        ]
        self.made, self.failures = {}, {}
        for name in names:
            case = CASES[name]
            config = case.config() if callable(case.config) else case.config
            layer_class = getattr(layers, case.layer)
            try:
                self.made[name] = layer_class.from_config(layer_class(**config).get_config())
            except Exception as error:
                self.failures[name] = f"{type(error).__name__}: {error}"

    def build(self, *shapes):
        """Layers are built when they are called."""

    def call(self, inputs, training=None):
        outputs = {}
        for number, (name, way) in enumerate(self.calls):
            if name in self.failures:
                continue
            try:
                outputs[str(number)] = self._call_layer(name, way, inputs[str(number)])
            except Exception as error:
                self.failures[name] = f"{way}: {type(error).__name__}: {error}"
        return outputs

    def _call_layer(self, name, way, given):
        case, layer = CASES[name], self.made[name]
        tensors, mask = given["tensors"], given.get("mask")
        if case.layer.endswith("Cell"):
            return layer(tensors[0], [tensors[1]])[0]
        if case.spread:
            return layer(*tensors, **({case.mask[0]: mask} if way == "mask" else {}))
        x = tensors[0] if len(tensors) == 1 else list(tensors)
        if way == "keyword":
            return layer(**{_parameters(case)[0]: x})
        if way == "positional mask":
            return layer(x, mask)
        return layer(x, **({case.mask[0]: mask} if way == "mask" else {}))

    def inputs_of_all(self):
        """What `call` takes: the tensors of each call, and its mask where that is given."""
        inputs = {}
        for number, (name, way) in enumerate(self.calls):
            tensors, mask = arguments_of(name, seed=number)
            inputs[str(number)] = {"tensors": tensors, **({"mask": mask} if "mask" in way else {})}
        return inputs


def traced(compute):
    return tf.function(compute, autograph=False)


def eagerly(compute):
    return compute


class Comparison:
    """Steps of one `Everything` from the same weights: plain, and compressed in one way or another.

    Args:
      names: Of cases.
      policy: Dtype policy.
      ways: Of calls; None: all.
      run: From a function of the inputs to what calls it: as Keras traces its train step by default.
      run_plain: The same for plain Keras: eagerly by default, which takes a fraction of the time of a trace.
    """

    def __init__(self, names, policy="float32", ways=None, run=traced, run_plain=eagerly):
        self.run, self.policy = run, policy
        keras.utils.set_random_seed(0)
        with dtype_policy(policy):
            self.model = Everything(names, ways)
            self.inputs = self.model.inputs_of_all()
            self.model(self.inputs)
            self.weights = [np.array(v.numpy()) for v in self.model.variables]
            self.plain = self._step(run_plain)
        self.skipped = dict(self.model.failures)

    def compressed(self, **options) -> tuple[dict, dict, int]:
        """What a compressed step gives, by case; what failed, by case; how many tensors it holds in another form."""
        with dtype_policy(self.policy):
            report = ct.compress_model(self.model, **options)
            try:
                found = self._step(self.run)
                held = sum(row.storage in ("compress", "bitmask") for row in report.rows)
            finally:
                ct.restore_model(self.model)
        failed = {k: why for k, why in self.model.failures.items() if k not in self.skipped}
        self.model.failures = dict(self.skipped)
        return found, failed, held

    def _step(self, run) -> dict[str, dict[str, np.ndarray]]:
        for variable, value in zip(self.model.variables, self.weights):
            variable.assign(value)
        sources = [
            tensor
            for number in map(str, range(len(self.model.calls)))
            for tensor in self.inputs[number]["tensors"]
            if tensor.dtype.is_floating
        ]
        trained = [v.value for v in self.model.trainable_variables]

        def compute(inputs):
            with tf.GradientTape() as tape:
                floats = [
                    tensor
                    for number in map(str, range(len(self.model.calls)))
                    for tensor in inputs[number]["tensors"]
                    if tensor.dtype.is_floating
                ]
                tape.watch(floats)
                outputs = self.model(inputs, training=True)
                total = tf.add_n([tf.cast(loss, tf.float32) for loss in self.model.losses] or [tf.zeros([])])
                for number, y in outputs.items():
                    direction = np.random.default_rng(int(number)).normal(size=y.shape)
                    total += tf.reduce_sum(tf.cast(y, tf.float32) * tf.constant(direction, tf.float32))
            grads = tape.gradient(total, [*floats, *trained], unconnected_gradients="zero")
            return outputs, [tf.convert_to_tensor(grad) for grad in grads]

        outputs, grads = run(compute)(self.inputs)
        return self._by_case(outputs, grads, len(sources))

    def _by_case(self, outputs, grads, inputs):
        found: dict[str, dict[str, np.ndarray]] = {name: {} for name in self.model.made}
        input_grads = iter(grads[:inputs])
        for number, (name, way) in enumerate(self.model.calls):
            if str(number) in outputs:
                found[name][f"output, {way}"] = _array(outputs[str(number)])
            for k, tensor in enumerate(self.inputs[str(number)]["tensors"]):
                if tensor.dtype.is_floating:
                    found[name][f"gradient of input {k}, {way}"] = _array(next(input_grads))
        of_weights = {id(v): g for v, g in zip(self.model.trainable_variables, grads[inputs:])}
        for name, layer in self.model.made.items():
            for variable in layer.trainable_variables:
                found[name][f"gradient of {variable.path}"] = _array(of_weights[id(variable)])
            for k, variable in enumerate(layer.non_trainable_variables):
                found[name][f"state {k} {variable.path}"] = _array(variable)
        return found


def _array(value: Any) -> np.ndarray:
    return np.concatenate(
        [np.asarray(part, "float64").ravel() for part in (value if isinstance(value, list) else [value])]
    )


def largest_difference(found: dict, expected: dict) -> tuple[float, str]:
    """|a - b| / max(|b|, 1) of what differs most, as vectors; and what that is. Infinite where values are missing."""
    if set(found) != set(expected):
        return np.inf, str(set(found) ^ set(expected))
    ratios = {
        key: float(np.linalg.norm(found[key] - value) / max(np.linalg.norm(value), 1.0))
        if np.isfinite(found[key]).all() or not np.isfinite(value).all()
        else np.inf
        for key, value in expected.items()
    }
    worst = max(ratios, key=ratios.__getitem__)
    return ratios[worst], worst


def cosine(found: dict, expected: dict) -> float:
    """Of all gradients of a case, as one vector; 1 where there are none."""
    keys = [key for key in expected if key.startswith("gradient")]
    if not keys:
        return 1.0
    a, b = (np.concatenate([values[key] for key in keys]) for values in (found, expected))
    if not np.isfinite(a).all():
        return -1.0
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / lengths) if lengths else float(np.array_equal(a, b))
