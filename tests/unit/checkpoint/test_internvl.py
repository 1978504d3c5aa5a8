"""config.json of InternVL3 as published, in its authors' format and in transformers'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import Rope
from mmserve.checkpoint.vision.internvit import InternVit

QWEN25: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "layer_types": ["full_attention"] * 24,
    "max_position_embeddings": 32768,
    "max_window_layers": 70,
    "model_type": "qwen2",
    "moe_config": None,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"},
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151674,
}
TOWER: dict[str, Any] = {
    "hidden_act": "gelu",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "layer_norm_eps": 1e-06,
    "norm_type": "layer_norm",
    "num_attention_heads": 16,
    "num_channels": 3,
    "num_hidden_layers": 24,
}
NATIVE = {
    "architectures": ["InternVLChatModel"],
    "downsample_ratio": 0.5,
    "dynamic_image_size": True,
    "force_image_size": 448,
    "image_fold": None,
    "llm_config": QWEN25,
    "max_dynamic_patch": 12,
    "min_dynamic_patch": 1,
    "model_type": "internvl_chat",
    "pad2square": False,
    "ps_version": "v2",
    "select_layer": -1,
    "template": "internvl2_5",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_thumbnail": True,
    "vision_config": TOWER
    | {
        "image_size": 448,
        "model_type": "intern_vit_6b",
        "num_experts": 8,
        "patch_size": 14,
        "qk_normalization": False,
        "qkv_bias": True,
        "use_moe": False,
    },
}
IN_TRANSFORMERS = {
    "architectures": ["InternVLForConditionalGeneration"],
    "downsample_ratio": 0.5,
    "image_seq_length": 256,
    "image_token_id": 151667,
    "model_type": "internvl",
    "projector_hidden_act": "gelu",
    "text_config": QWEN25,
    "torch_dtype": "bfloat16",
    "vision_config": TOWER
    | {
        "attention_bias": True,
        "image_size": [448, 448],
        "layer_scale_init_value": 0.1,
        "model_type": "internvl_vision",
        "patch_size": [14, 14],
        "use_absolute_position_embeddings": True,
        "use_mask_token": False,
        "use_mean_pooling": True,
        "use_qk_norm": False,
    },
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "default",
}


@pytest.mark.parametrize("config", [NATIVE, IN_TRANSFORMERS], ids=["native", "hf"])
def test_internvl3_as_published(tmp_path: Path, config: dict[str, Any]) -> None:
    """Its rope is "dynamic", which changes nothing within the context that it gives."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    model = load(tmp_path, weights=False)
    assert {layer.rope for layer in model.text.layers} == {Rope(theta=1e6, factor=2.0, original_max_position=32768)}
    assert (model.text.max_position, model.text.qkv_bias) == (32768, True)
    assert (model.image_token_id, model.image_token, model.checkpoint_dtype) == (151667, "<IMG_CONTEXT>", "bfloat16")
    vision = model.vision
    assert isinstance(vision, InternVit)
    assert (vision.image_size, vision.rows_per_tile, vision.qkv_bias, vision.rms_norm) == (448, 256, True, False)
    assert vision.qk_norm_eps is None
