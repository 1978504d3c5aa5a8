"""Stored names -> names used here."""

from __future__ import annotations

import pytest

from mmserve.checkpoint.tensor_names import canonical_name


@pytest.mark.parametrize(
    ("family", "stored", "name"),
    [
        ("llama", "model.layers.0.mlp.up_proj.weight", "text.layers.0.mlp.up_proj.weight"),
        ("llama", "lm_head.weight", "text.lm_head.weight"),
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", None),
        ("llama", "unknown.weight", "text.unknown.weight"),
        ("llava", "vision_tower.vision_model.embeddings.position_ids", None),
        ("qwen2_vl", "visual.merger.ln_q.weight", "vision.merger.ln_q.weight"),
        ("internvl_chat", "vision_model.encoder.layers.0.attn.qkv.bias", "vision.encoder.layer.0.attention.qkv.bias"),
        ("internvl_chat", "vision_model.encoder.layers.0.ls1", "vision.encoder.layer.0.lambda_1"),
        ("internvl_chat", "language_model.model.norm.weight", "text.norm.weight"),
    ],
)
def test_names(family: str, stored: str, name: str | None) -> None:
    assert canonical_name(family, stored) == name
