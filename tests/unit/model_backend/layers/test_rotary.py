"""Frequencies and angles are those of transformers, for heads and contexts of real models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Phi3Config, Qwen2Config, Qwen2VLTextConfig, Qwen3VLTextConfig
from transformers.models.ernie4_5.modeling_ernie4_5 import apply_rotary_pos_emb as ernie_rotary
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLRotaryEmbedding
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLTextRotaryEmbedding

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.config.rope_config import for_context
from mmserve.checkpoint.families.text import phi3, qwen2
from mmserve.checkpoint.spec import LayerSpec, Rope
from mmserve.model_backend.layers.rotary import Rotary
from mmserve.model_backend.platforms.torch_ops import TorchOps
from mmserve.runtime.errors import StartupError

CPU = torch.device("cpu")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 8.0},
    "llama3": LLAMA3 | {"original_max_position_embeddings": 8192},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn of a short context": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100},
    "yarn with all its keys": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "truncate": False,
    },
    "yarn with its amplitude": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 4096,
        "attention_factor": 1.3,
    },
}


@pytest.mark.parametrize("name", list(ROPES))
def test_angles_equal_those_of_transformers(name: str) -> None:
    raw = {
        "hidden_size": 256,
        "num_attention_heads": 2,
        "max_position_embeddings": 131072,
        "rope_parameters": ROPES[name] | {"rope_theta": 1e6},
    }
    positions = torch.tensor([[0, 1, 2, 77, 5000]])
    cos, sin = Qwen2RotaryEmbedding(Qwen2Config(**raw))(torch.empty(1), positions)
    found = Rotary([LayerSpec(rope=convert(raw, qwen2.Config).rope())], 128, torch.float32, CPU).angles(positions)
    for mine, theirs in zip(found, (cos, sin), strict=True):
        torch.testing.assert_close(mine[0], theirs[0, :, :64], rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("sections", [[16, 24, 24], [24, 20, 20], [6, 29, 29]], ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_angles_of_three_axes_equal_those_of_transformers(sections: list[int], interleaved: bool) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": sections, "mrope_interleaved": interleaved}
    raw = {"hidden_size": 256, "num_attention_heads": 2, "head_dim": 128, "rope_parameters": rope}
    positions = torch.stack([torch.arange(50), torch.arange(50) * 3 % 37, torch.arange(50) * 5 % 41])
    config, embedding = (
        (Qwen3VLTextConfig(**raw), Qwen3VLTextRotaryEmbedding)
        if interleaved
        else (Qwen2VLTextConfig(**raw), Qwen2VLRotaryEmbedding)
    )
    expected = embedding(config)(torch.empty(1), positions[:, None])
    rotary = Rotary([LayerSpec(rope=convert(raw, qwen2.Config).rope())], 128, torch.float32, CPU)
    for mine, theirs in zip(rotary.angles(positions), expected, strict=True):
        torch.testing.assert_close(mine[0], theirs[0, :, :64])
        assert mine.is_contiguous()
    same = positions[:1].expand(3, -1)
    assert torch.equal(rotary.angles(same)[0], rotary.angles(positions[:1])[0])


@pytest.mark.parametrize("attention_factor", [None, 1.5])
@pytest.mark.parametrize("context", [32, 33])
def test_longrope_has_other_divisors_beyond_the_original_context(context: int, attention_factor: float | None) -> None:
    """As published: ``type``, and the original context beside it."""
    raw = {
        "model_type": "phi3",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "original_max_position_embeddings": 32,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
            "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
            "attention_factor": attention_factor,
        },
    }
    text = convert(raw, phi3.Config).text_spec()
    rotary = Rotary(for_context(text, context).layers, text.head_dim, torch.float32, CPU)
    positions = torch.arange(context)[None]
    theirs = Phi3RotaryEmbedding(Phi3Config(**raw, pad_token_id=0))(torch.empty(1), positions)
    for mine, cos_or_sin in zip(rotary.angles(positions), theirs, strict=True):
        torch.testing.assert_close(mine[0], cos_or_sin[0, :, :8])


def test_adjacent_numbers_turn_as_in_transformers() -> None:
    positions, heads = torch.arange(9)[None], torch.randn(9, 2, 32)
    angles = Rotary([LayerSpec(rope=Rope(adjacent=True))], 32, torch.float32, CPU).angles(positions)
    cos, sin = (torch.cat([each[0], each[0]], dim=-1)[None] for each in angles)
    expected, _ = ernie_rotary(heads.transpose(0, 1)[None], heads.transpose(0, 1)[None], cos, sin)
    TorchOps().rotary_(heads, angles[0][0], angles[1][0], adjacent=True)
    torch.testing.assert_close(heads, expected[0].transpose(0, 1))


@pytest.mark.parametrize("fraction", [0.5, 0.75])
def test_a_part_of_each_head_turns_as_in_transformers(fraction: float) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": fraction}
    config = Phi3Config(hidden_size=64, num_attention_heads=2, rope_parameters=rope, pad_token_id=0)
    positions, heads = torch.arange(9), torch.randn(9, 2, 32)
    cos, sin = Phi3RotaryEmbedding(config)(torch.empty(1), positions[None])
    expected, _ = apply_rotary_pos_emb(heads.transpose(0, 1)[None], heads.transpose(0, 1)[None], cos, sin)
    rotary = Rotary([LayerSpec(rope=Rope(fraction=fraction))], 32, torch.float32, CPU)
    angles = rotary.angles(positions[None])
    TorchOps().rotary_(heads, angles[0][0], angles[1][0])
    torch.testing.assert_close(heads, expected[0].transpose(0, 1))


def test_layers_name_their_rows_of_the_angles() -> None:
    near, far = Rope(theta=1e4), Rope(theta=1e6)
    rotary = Rotary([LayerSpec(rope=rope) for rope in (far, None, near, far)], 8, torch.float32, CPU)
    assert rotary.ropes == [(0, 0), None, (1, 1), (0, 0)]
    cos, _ = rotary.angles(torch.arange(5)[None])
    alone, _ = Rotary([LayerSpec(rope=near)], 8, torch.float32, CPU).angles(torch.arange(5)[None])
    assert torch.equal(cos[1], alone[0])
    assert not torch.equal(cos[0], alone[0])


@pytest.mark.parametrize("other", [Rope(fraction=0.5), Rope(adjacent=True)])
def test_layers_that_turn_different_numbers_are_refused(other: Rope) -> None:
    with pytest.raises(StartupError, match="different parts"):
        Rotary([LayerSpec(), LayerSpec(rope=other)], 8, torch.float32, CPU)


def test_a_model_may_rotate_nothing() -> None:
    rotary = Rotary([LayerSpec(rope=None)], 8, torch.float32, CPU)
    assert rotary.angles(torch.arange(5)[None])[0].shape == (0, 5, 4)
