"""Frequencies and angles are those of transformers, for heads and contexts of real models."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding

from mmserve.checkpoint.families import qwen2
from mmserve.checkpoint.spec import LayerSpec, Rope
from mmserve.checkpoint.text_config import convert
from mmserve.model_backend.layers.rotary import Rotary

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


def test_layers_name_their_rows_of_the_angles() -> None:
    near, far = Rope(theta=1e4), Rope(theta=1e6)
    rotary = Rotary([LayerSpec(rope=rope) for rope in (far, None, near, far)], 8, torch.float32, CPU)
    assert rotary.ropes == (0, None, 1, 0)
    cos, _ = rotary.angles(torch.arange(5)[None])
    alone, _ = Rotary([LayerSpec(rope=near)], 8, torch.float32, CPU).angles(torch.arange(5)[None])
    assert torch.equal(cos[1], alone[0])
    assert not torch.equal(cos[0], alone[0])


def test_a_model_may_rotate_nothing() -> None:
    rotary = Rotary([LayerSpec(rope=None)], 8, torch.float32, CPU)
    assert rotary.angles(torch.arange(5)[None])[0].shape == (0, 5, 4)
