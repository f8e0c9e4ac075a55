"""keras-hub's models from small configurations, with batches for them; no weights are fetched.

# keras-hub's dependencies bring `tensorflow`, which is not wanted beside tensorflow-cpu.
pip install --no-deps keras-hub; pip install regex tokenizers
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

MINILM = {"MiniLM": 0.0, "MiniLM-dropout": 0.1}  # BERT in the sizes of MiniLM-L6, and its dropout
LANGUAGE_MODELS = ("Gemma", "Llama3", "Mistral", "GPT2", "Bert", "Roberta", "DebertaV3", "T5", "Whisper")
VISION_MODELS = ("ViT", "SegFormer", "ResNet")


class Sizes(NamedTuple):
    """Of a language model; what it learns is the next token. An encoder and decoder has half the blocks in each."""

    batch: int = 8
    tokens: int = 256
    vocabulary: int = 500
    width: int = 192
    blocks: int = 6


def backbone_of(name: str, sizes: Sizes, lora: bool = False) -> Any:
    """A model without its head."""
    import keras_hub

    if name in MINILM:
        heads = {"num_heads": 12, "max_sequence_length": sizes.tokens, "dropout": MINILM[name]}
        name, sizes = "Bert", sizes._replace(width=384)
    else:
        heads = {"num_heads": 4, "max_sequence_length": sizes.tokens}
    tokens, width = sizes.tokens, sizes.width
    of_all = {
        "vocabulary_size": sizes.vocabulary,
        "num_layers": sizes.blocks,
        "hidden_dim": width,
        "intermediate_dim": 4 * width,
    }
    grouped = {"num_query_heads": 4, "num_key_value_heads": 2, "intermediate_dim": 8 * width // 3}
    half = {"num_heads": 4, "num_layers": sizes.blocks // 2}
    own = {
        "Gemma": {"num_query_heads": 4, "num_key_value_heads": 1, "head_dim": width // 4},
        "Llama3": grouped,
        "Mistral": {**grouped, "sliding_window": tokens},
        "DebertaV3": {**heads, "bucket_size": tokens // 2},
        "T5": half,
        "Whisper": {**half, "max_encoder_sequence_length": 2 * tokens, "max_decoder_sequence_length": tokens},
    }
    backbone = getattr(keras_hub.models, f"{name}Backbone")(**{**of_all, **own.get(name, heads)})
    if lora:
        backbone.enable_lora(4)
    return backbone


def causal_model(name: str, sizes: Sizes, batches: int, lora: bool = False) -> tuple[Any, dict, np.ndarray]:
    """(model, x, y) of a task of keras-hub's, whose head is the embedding."""
    import keras_hub

    backbone = backbone_of(name.removesuffix("CausalLM"), sizes, lora)
    model = getattr(keras_hub.models, name)(backbone=backbone, preprocessor=None)
    return model, *_batches(backbone, sizes, batches)


def language_model(name: str, sizes: Sizes, batches: int, lora: bool = False) -> tuple[Any, dict, np.ndarray]:
    """(model, x, y) with that many batches; with `lora`, rank-4 updates of frozen matrices alone are trained."""
    from tensorflow import keras

    backbone = backbone_of(name, sizes, lora)
    outputs = backbone.output
    if name in MINILM:
        return _classifier(backbone, sizes, batches)
    if isinstance(outputs, dict):
        outputs = outputs.get("sequence_output", outputs.get("decoder_sequence_output"))
    model = keras.Model(backbone.input, keras.layers.Dense(sizes.vocabulary, dtype="float32")(outputs))
    return model, *_batches(backbone, sizes, batches)


def quantize(model: Any, to: str, lora: bool) -> None:
    """Has Keras quantize all matrices, the head's too; with `lora`, rank-4 updates of them are trained.

    Of layers that Keras cannot quantize, such as a normalization, nothing changes.
    """
    for layer in model._flatten_layers():
        if list(layer._layers):
            continue
        try:
            layer.quantize(to)
        except NotImplementedError:
            continue
        if lora:
            layer.enable_lora(4)


def _classifier(backbone: Any, sizes: Sizes, batches: int) -> tuple[Any, dict, np.ndarray]:
    """Of texts in two classes, as in fine-tuning."""
    from tensorflow import keras

    model = keras.Model(
        backbone.input, keras.layers.Dense(2, dtype="float32")(backbone.output["pooled_output"])
    )
    x, _ = _batches(backbone, sizes, batches)
    return model, x, np.arange(batches * sizes.batch) % 2


def _batches(backbone: Any, sizes: Sizes, batches: int) -> tuple[dict, np.ndarray]:
    rng = np.random.default_rng(0)
    samples, tokens = batches * sizes.batch, sizes.tokens
    shape = (samples, tokens)
    x = {}
    for part in backbone.input:
        if part == "encoder_features":
            x[part] = rng.normal(size=(samples, 2 * tokens, 80)).astype("float32")
        elif "segment" in part:
            x[part] = np.zeros(shape, "int32")
        elif "mask" in part:
            x[part] = np.ones(shape, "int32")
        else:
            x[part] = rng.integers(1, sizes.vocabulary, shape)
    return x, rng.integers(1, sizes.vocabulary, shape)


def vision_model(name: str, side: int, batch: int, batches: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """(model, images, classes), a classifier; SegFormer's are classes of pixels."""
    import keras_hub

    models = keras_hub.models
    shape, classes = (side, side, 3), 10
    if name == "ViT":
        backbone = models.ViTBackbone(
            image_shape=shape, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=256
        )
        model = models.ViTImageClassifier(backbone, num_classes=classes, preprocessor=None, dtype=None)
    elif name == "ResNet":
        backbone = models.ResNetBackbone(
            input_conv_filters=[64],
            input_conv_kernel_sizes=[3],
            stackwise_num_filters=[64, 128],
            stackwise_num_blocks=[2, 2],
            stackwise_num_strides=[1, 2],
            block_type="basic_block",
            image_shape=shape,
        )
        model = models.ResNetImageClassifier(backbone, num_classes=classes, preprocessor=None)
    else:
        encoder = models.MiTBackbone(
            image_shape=shape,
            layerwise_num_heads=[1, 2],
            layerwise_sr_ratios=[4, 2],
            layerwise_patch_sizes=[7, 3],
            layerwise_strides=[4, 2],
            num_layers=2,
            layerwise_depths=[2, 2],
            hidden_dims=[32, 64],
            max_drop_path_rate=0.1,
        )
        backbone = models.SegFormerBackbone(image_encoder=encoder, projection_filters=64)
        model = models.SegFormerImageSegmenter(backbone, num_classes=classes, preprocessor=None)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch * batches, *shape)).astype("float32")
    of_one = (side, side) if name == "SegFormer" else ()
    return model, x, rng.integers(0, classes, (len(x), *of_one))
