"""config.json of Qwen's vision-language models, as published and as transformers 5 writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import ModelSpec, MoeSpec
from mmserve.checkpoint.vision.qwen_vl import Qwen2Vision, Qwen3Vision, Qwen25Vision
from mmserve.runtime.errors import StartupError

QWEN2_VL_7B: dict[str, Any] = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "vision_token_id": 151654,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2_vl",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vision_config": {
        "depth": 32,
        "embed_dim": 1280,
        "mlp_ratio": 4,
        "num_heads": 16,
        "in_chans": 3,
        "hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
    },
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 152064,
}
QWEN25_VL_7B = QWEN2_VL_7B | {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
}
QWEN3_VL_2B: dict[str, Any] = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "image_token_id": 151655,
    "model_type": "qwen3_vl",
    "text_config": {
        "attention_bias": False,
        "bos_token_id": 151643,
        "dtype": "bfloat16",
        "eos_token_id": 151645,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_position_embeddings": 262144,
        "model_type": "qwen3_vl_text",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "rope_theta": 5000000,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "tie_word_embeddings": True,
    "vision_config": {
        "deepstack_visual_indexes": [5, 11, 17],
        "depth": 24,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 1024,
        "in_channels": 3,
        "intermediate_size": 4096,
        "model_type": "qwen3_vl",
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": 2048,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    },
}


def spec(directory: Path, config: dict[str, Any]) -> ModelSpec:
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").touch()
    return load(directory)


def test_qwen2_vl_as_published(tmp_path: Path) -> None:
    model = spec(tmp_path, QWEN2_VL_7B)
    rope = model.text.layers[0].rope
    assert rope is not None
    assert (rope.theta, rope.kind, rope.sections, rope.interleaved) == (1e6, "default", (16, 24, 24), False)
    assert (model.text.hidden_size, model.text.num_layers, model.text.qkv_bias) == (3584, 28, True)
    assert (model.image_token, model.image_token_id, model.eos_token_ids) == ("<|image_pad|>", 151655, (151645,))
    assert model.checkpoint_dtype == "bfloat16"
    vision = model.vision
    assert isinstance(vision, Qwen2Vision)
    assert (vision.hidden_size, vision.intermediate_size, vision.activation) == (1280, 5120, "quick_gelu")
    assert (vision.patches_per_row, vision.streams, vision.patch_nums) == (4, 1, 1176)


def test_qwen2_5_vl_as_published(tmp_path: Path) -> None:
    vision = spec(tmp_path, QWEN25_VL_7B).vision
    assert isinstance(vision, Qwen25Vision)
    assert (vision.window_squares, vision.full_attention_layers) == (4, (7, 15, 23, 31))
    assert (vision.intermediate_size, vision.activation) == (3420, "silu")


def test_qwen3_vl_as_published(tmp_path: Path) -> None:
    model = spec(tmp_path, QWEN3_VL_2B)
    rope = model.text.layers[0].rope
    assert rope is not None
    assert (rope.theta, rope.sections, rope.interleaved) == (5e6, (24, 20, 20), True)
    assert (model.text.qk_norm, model.text.qkv_bias, model.text.tie_embeddings) == (True, False, True)
    vision = model.vision
    assert isinstance(vision, Qwen3Vision)
    assert (vision.positions_per_side, vision.deepstack_layers, vision.streams) == (48, (5, 11, 17), 4)


def test_qwen3_vl_with_experts_as_published(tmp_path: Path) -> None:
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "mlp_only_layers": []}
    config = QWEN3_VL_2B | {
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "model_type": "qwen3_vl_moe",
        "text_config": QWEN3_VL_2B["text_config"] | experts | {"model_type": "qwen3_vl_moe_text"},
    }
    text = spec(tmp_path, config).text
    assert text.moe == MoeSpec(num_experts=128, top_k=8, intermediate_size=768, renormalize=True)
    assert all(layer.experts for layer in text.layers)


@pytest.mark.parametrize(
    ("config", "changes", "complaint"),
    [
        (QWEN2_VL_7B, {"hidden_size": 2048}, "rows of 2048 do not fit a text model of hidden size 3584"),
        (QWEN2_VL_7B, {"in_chans": 1}, "3 channels"),
        (QWEN25_VL_7B, {"window_size": 20}, "window_size 20"),
        (QWEN3_VL_2B, {"num_position_embeddings": 2300}, "not a square number"),
        (QWEN3_VL_2B, {"deepstack_visual_indexes": [11, 5]}, "must be ascending layers of 24"),
        (QWEN3_VL_2B, {"deepstack_visual_indexes": [24]}, "must be ascending layers of 24"),
        (QWEN3_VL_2B, {"hidden_act": "mish"}, "activation 'mish' is not supported"),
    ],
)
def test_what_the_towers_do_not_compute(
    tmp_path: Path, config: dict[str, Any], changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(StartupError, match=complaint.replace("(", r"\(")):
        spec(tmp_path, config | {"vision_config": config["vision_config"] | changes})
