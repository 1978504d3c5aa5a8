"""Those of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: towers for pictures of any size.

Files do not say everything: the rest is as in the published checkpoints of each family.
"""

from __future__ import annotations

from mmserve.checkpoint.gguf.projectors.names import Names
from mmserve.checkpoint.gguf.projectors.projector import Fields, Projector
from mmserve.checkpoint.gguf.projectors.tower import Tower
from mmserve.runtime.errors import StartupError

_TOWER, _FRAMES, _MERGE = "visual.", 2, 2
_SMALLEST, _LARGEST = 4 * 28 * 28, 16384 * 28 * 28
"""Areas of pictures in pixels."""
_SMALLEST_OF_3, _LARGEST_OF_3 = 64 * 32 * 32, 16384 * 32 * 32
_QKV = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_qkv"), "attn.qkv") | {"attn_out": "attn.proj"}
_NORMS = {"ln1": "norm1", "ln2": "norm2"}
_EMBEDDING = {
    "v.patch_embd.weight": _TOWER + "patch_embed.proj.weight",
    "v.patch_embd.weight.1": _TOWER + "patch_embed.proj.weight",
}
_MERGER = {
    "v.post_ln.": _TOWER + "merger.ln_q.",
    "mm.0.": _TOWER + "merger.mlp.0.",
    "mm.2.": _TOWER + "merger.mlp.2.",
}
_LAYER = _TOWER + "blocks.{}."
_NAMES = Names(_LAYER, _QKV | _NORMS | {"ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"}, _EMBEDDING | _MERGER)
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_NAMES_OF_2_5 = Names(_LAYER, _QKV | _NORMS | _GATED, _EMBEDDING | _MERGER)


def _names_of_3(tower: Tower) -> Names:
    mergers = {
        f"v.deepstack.{layer}.{part}.": f"{_TOWER}deepstack_merger_list.{index}.{name}."
        for index, layer in enumerate(_deepstack(tower))
        for part, name in (("norm", "norm"), ("fc1", "linear_fc1"), ("fc2", "linear_fc2"))
    }
    others = {
        "v.patch_embd.bias": _TOWER + "patch_embed.proj.bias",
        "v.position_embd.": _TOWER + "pos_embed.",
        "v.post_ln.": _TOWER + "merger.norm.",
        "mm.0.": _TOWER + "merger.linear_fc1.",
        "mm.2.": _TOWER + "merger.linear_fc2.",
    }
    parts = _QKV | _NORMS | {"ffn_up": "mlp.linear_fc1", "ffn_down": "mlp.linear_fc2"}
    return Names(_LAYER, parts, _EMBEDDING | others | mergers)


def _deepstack(tower: Tower) -> list[int]:
    """Layers whose outputs become further streams."""
    return [layer for layer, is_one in enumerate(tower.get("is_deepstack_layers", list, [])) if is_one]


def _config_of_2(tower: Tower, text: Fields) -> Fields:
    width = tower.number("embedding_length")
    vision = {"embed_dim": width, "hidden_size": text["hidden_size"], "mlp_ratio": tower.inner_size / width}
    return _config("Qwen2VLForConditionalGeneration", "qwen2_vl", tower, text, vision)


def _config_of_2_5(tower: Tower, text: Fields) -> Fields:
    pattern, layers = tower.number("n_wa_pattern"), tower.number("block_count")
    vision = {
        "hidden_size": tower.number("embedding_length"),
        "intermediate_size": tower.inner_size,
        "out_hidden_size": text["hidden_size"],
        "window_size": tower.number("window_size", 112),
        "fullatt_block_indexes": list(range(pattern - 1, layers, pattern)),
    }
    return _config("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", tower, text, vision)


def _config_of_3(tower: Tower, text: Fields) -> Fields:
    vision = {
        "hidden_size": tower.number("embedding_length"),
        "intermediate_size": tower.inner_size,
        "out_hidden_size": text["hidden_size"],
        "num_position_embeddings": tower.shape("v.position_embd.weight")[0],
        "deepstack_visual_indexes": _deepstack(tower),
    }
    return _config("Qwen3VLForConditionalGeneration", "qwen3_vl", tower, text, vision)


def _config(architecture: str, kind: str, tower: Tower, text: Fields, vision: Fields) -> Fields:
    if not (sections := text.get("mrope_section")):
        raise StartupError("rope.dimension_sections is missing")
    shared = {
        "depth": tower.number("block_count"),
        "num_heads": tower.number("attention.head_count"),
        "patch_size": tower.number("patch_size"),
        "spatial_merge_size": tower.number("spatial_merge_size", _MERGE),
        "temporal_patch_size": _FRAMES,
    }
    scaling = (text["rope_scaling"] or {"rope_type": "default"}) | {"mrope_section": sections}
    return {
        "architectures": [architecture],
        "model_type": kind,
        "text_config": text | {"rope_scaling": scaling},
        "vision_config": vision | shared,
    }


def _settings(tower: Tower, smallest: int, largest: int) -> Fields:
    area = {
        "shortest_edge": tower.number("image_min_pixels", smallest),
        "longest_edge": tower.number("image_max_pixels", largest),
    }
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "size": area,
        "patch_size": tower.number("patch_size"),
        "merge_size": tower.number("spatial_merge_size", _MERGE),
        "temporal_patch_size": _FRAMES,
        **tower.colours(),
    }


QWEN2_VL = Projector(
    texts=("qwen2vl",),
    token="<|image_pad|>",
    output=lambda tower: tower.shape("mm.2.weight")[0],
    config=_config_of_2,
    settings=lambda tower: _settings(tower, _SMALLEST, _LARGEST),
    names=lambda tower: _NAMES,
)
QWEN2_5_VL = QWEN2_VL._replace(config=_config_of_2_5, names=lambda tower: _NAMES_OF_2_5)
QWEN3_VL = QWEN2_VL._replace(
    texts=("qwen3vl",),
    config=_config_of_3,
    settings=lambda tower: _settings(tower, _SMALLEST_OF_3, _LARGEST_OF_3),
    names=_names_of_3,
)
