"""Families of keras-hub beside those of language_models.py: memory plain and compressed, and gradients.

    # keras-hub's dependencies bring `tensorflow`, which is not wanted beside tensorflow-cpu.
    pip install --no-deps keras-hub; pip install regex tokenizers
    python benchmarks/models/hub_families.py --out hub_families.jsonl

Small configurations: width 128, 4 blocks (2 + 2 of an encoder and decoder), 8 x 128 tokens, 500 words; images of 64
px, 16 a batch. A dense layer of ten classes ends each; CLIP has its own loss of pairs. Dropout is each family's own.

Each variant trains in a child process of its own. The peak is the highest of all steps, the first included, over the
level before it; under --xla what the compiler plans. Errors are of the gradient of all weights of one step, from the
same weights, batch and random numbers, over plain Keras'; "exact" is with `codec="zvc"`. Every measurement adds a line
to the file; those that are there already are not made again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from language_models import add_line, gradients, measured, meter

VARIANTS = ("plain", "compressed")
TOKENS, WORDS, WIDTH, BLOCKS, SIDE, CLASSES = 128, 500, 128, 4, 64, 10
BATCHES, TEXTS, IMAGES = 6, 8, 16
SHAPE = (SIDE, SIDE, 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--xla", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("hub_families.jsonl"))
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        print(json.dumps(measure(options.families[0], options)))
        return 0
    runs = [(name, variant) for name in options.families for variant in VARIANTS]
    failed = [of for of in runs if (*of, options.xla) not in measured(options.out) and not run(*of, options)]
    print(table(options))
    return int(bool(failed))


def run(name: str, variant: str, options: argparse.Namespace) -> bool:
    command = [sys.executable, __file__, "--families", name, "--variant", variant]
    command += ["--steps", str(options.steps), *["--xla"] * options.xla]
    return add_line(options.out, (name, variant, options.xla), command)


def table(options: argparse.Namespace) -> str:
    found = measured(options.out)
    rows = [
        "| family | peak plain | compressed | ratio | gradient error, exact | compressed | held as it is |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in options.families:
        plain, ours = (found.get((name, variant, options.xla)) for variant in VARIANTS)
        if plain and ours:
            peaks = [entry["planned_bytes"] or entry["peak_bytes"] for entry in (plain, ours)]
            rows.append(
                f"| {name} | {peaks[0] / 1e6:.0f} MB | {peaks[1] / 1e6:.0f} MB | {peaks[0] / peaks[1]:.1f} "
                f"| {ours['exact']:.1e} | {ours['error']:.1%} | {ours['kept']:.0%} |"
            )
    return "\n".join(rows)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    import tensorflow as tf
    from tensorflow import keras

    import tf_comptrain as ct

    keras.utils.set_random_seed(0)
    model, x, y, batch = made(name)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=options.xla)
    found = {"weights": model.count_params(), "exact": None, "error": None, "kept": None}
    if options.variant == "compressed":
        first = tf.nest.map_structure(lambda a: tf.constant(a[:batch]), (x, y))
        plain = gradients(model, *first)
        ct.compress_model(model, codec="zvc")
        found["exact"] = distance(gradients(model, *first), plain)
        ct.restore_model(model)
        ct.compress_model(model)
        found["error"] = distance(gradients(model, *first), plain)
        rows = [(row.storage, row.predicted_bytes) for row in ct.report(model).rows if row.predicted_bytes]
        kept = sum(held for storage, held in rows if storage == "keep")
        found["kept"] = kept / sum(held for _, held in rows)
    return {**found, **meter(model, x, y, batch, options.steps, options.xla)}


def distance(ours: list, plain: list) -> float:
    """Of all weights' gradients together, relative."""
    import numpy as np

    norms = np.array([(np.linalg.norm(a - b), np.linalg.norm(b)) for a, b in zip(ours, plain)])
    return float(np.divide(*np.linalg.norm(norms, axis=0)))


def made(name: str) -> tuple[Any, dict, Any, int]:
    """(model, x, y, samples a batch), with random numbers of the shapes that the family reads."""
    import numpy as np
    from tensorflow import keras

    backbone, rng = FAMILIES[name](), np.random.default_rng(0)
    named = backbone.input if isinstance(backbone.input, dict) else {"": backbone.input}
    batch = TEXTS if any("token" in part for part in named) else IMAGES
    samples = BATCHES * batch
    x = {part: _values(part, tensor, samples, rng) for part, tensor in named.items()}
    outputs = backbone.output
    if name == "CLIP":  # row k of a batch belongs to column k
        model = keras.Model(backbone.input, outputs["text_logits"])
        return model, x, np.tile(np.arange(batch), BATCHES), batch
    if isinstance(outputs, dict):
        outputs = next(outputs[part] for part in _OUTPUTS if part in outputs)
    model = keras.Model(backbone.input, keras.layers.Dense(CLASSES, dtype="float32")(outputs))
    x = x if isinstance(backbone.input, dict) else x[""]
    one = keras.tree.map_structure(lambda a: a[:1], x)
    return model, x, rng.integers(0, CLASSES, (samples, *model(one).shape[1:-1])), batch


_OUTPUTS = ("decoder_sequence_output", "sequence_output", "P3")


def _values(part: str, tensor: Any, samples: int, rng: Any) -> Any:
    import numpy as np

    length = 40 * TOKENS if part == "encoder_input_values" else TOKENS  # of a sound
    shape = (samples, *(size or length for size in tensor.shape[1:]))
    if "mask" in part:
        return np.ones(shape, tensor.dtype)
    if "segment" in part:
        return np.zeros(shape, "int32")
    if tensor.dtype == "int32":
        return rng.integers(1, WORDS, shape)
    return rng.normal(size=shape).astype("float32")


def _of(name: str, **arguments: Any) -> Any:
    import keras_hub

    return getattr(keras_hub.models, f"{name}Backbone")(**arguments)


def _heads(name: str, **own: Any) -> Callable[[], Any]:
    """Of transformers of text with as many heads of keys as of queries."""
    sizes = {"num_layers": BLOCKS, "num_heads": 4, "hidden_dim": WIDTH, "intermediate_dim": 4 * WIDTH}
    given = {"vocabulary_size": WORDS, **sizes, **own}
    return lambda: _of(name, **{key: value for key, value in given.items() if value is not None})


def _grouped(name: str, **own: Any) -> Callable[[], Any]:
    """Of decoders with two queries for each key."""
    grouped = {"num_heads": None, "num_query_heads": 4, "num_key_value_heads": 2, "intermediate_dim": 344}
    return _heads(name, **grouped, **own)


def _vit(name: str, **own: Any) -> Callable[[], Any]:
    return _heads(name, vocabulary_size=None, image_shape=SHAPE, patch_size=8, **own)


def _resnet() -> Any:
    blocks = {
        "stackwise_num_filters": [64, 128],
        "stackwise_num_blocks": [2, 2],
        "stackwise_num_strides": [1, 2],
    }
    stem = {"input_conv_filters": [64], "input_conv_kernel_sizes": [3]}
    return _of("ResNet", **stem, **blocks, block_type="basic_block", image_shape=SHAPE)


def _clip() -> Any:
    from keras_hub.models import CLIPTextEncoder, CLIPVisionEncoder

    sizes = {"hidden_dim": WIDTH, "num_layers": 2, "num_heads": 4, "intermediate_dim": 4 * WIDTH}
    text = CLIPTextEncoder(WORDS, WIDTH, max_sequence_length=TOKENS, **sizes)
    images = CLIPVisionEncoder(patch_size=8, image_shape=SHAPE, **sizes)
    return _of("CLIP", vision_encoder=images, text_encoder=text, projection_dim=64)


def _t5_gemma() -> Any:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    sizes = {"hidden_dim": WIDTH, "intermediate_dim": 2 * WIDTH, "num_layers": 2, **heads}
    half = {**sizes, "layer_types": ["full_attention"] * 2}
    both = {f"{part}_{key}": value for part in ("encoder", "decoder") for key, value in half.items()}
    return _of("T5Gemma", vocabulary_size=WORDS, **both)


def _smol_lm() -> Any:
    kinds = {"rope_layer_enabled_list": [True] * BLOCKS, "layer_types": ["full_attention"] * BLOCKS}
    positions = {"max_position_embeddings": TOKENS, "rope_theta": 1e4, "partial_rotary_factor": 1.0}
    plain = {"attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False, "layer_norm_epsilon": 1e-6}
    heads = {"num_heads": None, "num_attention_heads": 4, "num_key_value_heads": 2}
    return _heads("SmolLM3", **heads, **kinds, **positions, **plain)()


EXPERTS = {"num_experts": 4, "top_k": 2}
LINEAR = {f"linear_{kind}": size for kind, size in (
    ("num_key_heads", 4), ("num_value_heads", 4), ("key_head_dim", 32), ("value_head_dim", 32)
)}  # fmt: skip
FAMILIES: dict[str, Callable[[], Any]] = {
    "ALBERT": _heads("Albert", embedding_dim=64),
    "BART": _heads("Bart", num_layers=2),
    "Bloom": _heads("Bloom"),
    "DistilBERT": _heads("DistilBert"),
    "ELECTRA": _heads("Electra", vocabulary_size=None, vocab_size=WORDS, embedding_dim=64),
    "ESM": _heads("ESM"),
    "FNet": _heads("FNet", num_heads=None),
    "Falcon": _heads("Falcon", num_heads=None, num_attention_heads=4),
    "Gemma 3": lambda: _of(
        "Gemma3", vocabulary_size=WORDS, image_size=None, num_layers=BLOCKS, num_query_heads=4, num_key_value_heads=2,
        hidden_dim=WIDTH, intermediate_dim=344, head_dim=32,
    ),
    "GPT-NeoX": _heads("GPTNeoX"),
    "GPT-OSS": _grouped("GptOss", **EXPERTS),
    "Llama": _grouped("Llama"),
    "Mixtral": _grouped("Mixtral", **EXPERTS),
    "OPT": _heads("OPT"),
    "Phi-3": _grouped("Phi3"),
    "Qwen 2": _grouped("Qwen2"),
    "Qwen 3": _grouped("Qwen3", head_dim=32),
    "Qwen 3.5": _grouped("Qwen3_5", head_dim=32, **LINEAR),
    "Qwen MoE": _grouped("QwenMoe", moe_intermediate_dim=128, shared_expert_intermediate_dim=128, **EXPERTS),
    "RoFormer": _heads("RoformerV2", head_size=32),
    "RWKV-7": lambda: _of(
        "RWKV7", hidden_size=WIDTH, head_size=32, num_layers=2, vocabulary_size=WORDS, intermediate_dim=2 * WIDTH
    ),
    "SmolLM 3": _smol_lm,
    "T5Gemma": _t5_gemma,
    "XLM-R": _heads("XLMRoberta"),
    "XLNet": _heads("XLNet"),
    "Moonshine": lambda: _of(
        "Moonshine", vocabulary_size=WORDS, filter_dim=WIDTH, encoder_num_layers=2, decoder_num_layers=2,
        hidden_dim=WIDTH, intermediate_dim=2 * WIDTH, encoder_num_heads=4, decoder_num_heads=4,
    ),
    "CLIP": _clip,
    "DINOv2": _vit("DINOV2", position_embedding_shape=SHAPE),
    "DINOv3": _vit("DINOV3"),
    "DeiT": _vit("DeiT"),
    "ViTDet": _vit(
        "ViTDet", hidden_dim=None, hidden_size=WIDTH, global_attention_layer_indices=[1, 3], num_output_channels=64,
        window_size=4,
    ),
    "Swin": lambda: _of(
        "SwinTransformer", image_shape=SHAPE, embed_dim=48, depths=[2, 2], num_heads=[2, 4], window_size=4, patch_size=2
    ),
    "MiT": lambda: _of(
        "MiT", layerwise_depths=[2, 2], num_layers=2, layerwise_num_heads=[1, 2], layerwise_sr_ratios=[4, 2],
        max_drop_path_rate=0.1, layerwise_patch_sizes=[7, 3], layerwise_strides=[4, 2], image_shape=SHAPE,
        hidden_dims=[32, 64],
    ),
    "DeepLabV3": lambda: _of(
        "DeepLabV3", image_encoder=_resnet(), spatial_pyramid_pooling_key="P3", upsampling_size=8,
        dilation_rates=[2, 4], image_shape=SHAPE,
    ),
    "RetinaNet": lambda: _of(
        "RetinaNet", image_encoder=_resnet(), min_level=3, max_level=4, use_p5=False, image_shape=SHAPE
    ),
    "CSPNet": lambda: _of(
        "CSPNet", stem_filters=32, stem_kernel_size=3, stem_strides=1, stackwise_depth=[1, 2],
        stackwise_strides=[1, 2], stackwise_num_filters=[64, 128], block_type="dark_block", stage_type="dark",
        image_shape=SHAPE,
    ),
    "DenseNet": lambda: _of("DenseNet", stackwise_num_repeats=[3, 3], image_shape=SHAPE, growth_rate=16),
    "VGG": lambda: _of("VGG", stackwise_num_repeats=[2, 2], stackwise_num_filters=[32, 64], image_shape=SHAPE),
    "Flux": lambda: _of(
        "Flux", input_channels=16, hidden_size=WIDTH, mlp_ratio=2.0, num_heads=4, depth=2, depth_single_blocks=2,
        axes_dim=[8, 12, 12], theta=10000, use_bias=True, image_shape=(64, 16), text_shape=(32, 16),
        image_ids_shape=(64, 3), text_ids_shape=(32, 3), y_shape=(16,),
    ),
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
