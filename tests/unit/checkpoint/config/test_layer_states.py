"""Layers that keep something else than keys and values of their own are described, and refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mmserve.checkpoint.config.layer_states import check, with_states
from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import KvGroup, LayerSpec, OwnKv, RecurrentState, SharedKv, TextSpec
from mmserve.runtime.errors import StartupError
from tests.fakes.pictures.media import model_spec

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def text(*windows: int | None) -> TextSpec:
    """A layer for each window."""
    return replace(model_spec(Path()).text, layers=tuple(LayerSpec(window=window) for window in windows))


def test_layers_keep_keys_and_values_unless_the_config_says_otherwise() -> None:
    plain = text(8, None, 8)
    for raw in ({}, {"layer_types": None}, {"layer_types": ["sliding_attention", "full_attention", "attention"]}):
        assert with_states(plain, raw) == plain
    check(plain)
    assert plain.kv_groups == (KvGroup(layers=(0, 1, 2), num_kv_heads=plain.num_kv_heads, head_dim=plain.head_dim),)


def test_recurrent_layers_are_of_no_kv_group() -> None:
    hybrid = with_states(text(None, None, None), {"layer_types": ["linear_attention", "full_attention", "mamba"]})
    assert [layer.state for layer in hybrid.layers] == [
        RecurrentState(kind="linear_attention"),
        OwnKv(),
        RecurrentState(kind="mamba"),
    ]
    assert hybrid.kv_groups[0].layers == (1,)
    with pytest.raises(StartupError, match=r"layer 0 has a recurrent state \(linear_attention\)"):
        check(hybrid)


def test_the_last_layers_share_with_the_last_one_that_has_their_window() -> None:
    shared = with_states(text(8, 8, None, 8, None), {"num_kv_shared_layers": 2})
    assert [layer.state for layer in shared.layers[2:]] == [OwnKv(), SharedKv(layer=1), SharedKv(layer=2)]
    assert shared.kv_groups[0].layers == (0, 1, 2)
    with pytest.raises(StartupError, match="layer 3 shares keys and values with layer 1"):
        check(shared)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layer_types": ["full_attention"] * 3 + ["linear_attention"]}, "layer 3 has a recurrent state"),
        ({"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, "layer type 'chunked_attention'"),
        ({"layer_types": ["full_attention"] * 3}, "layer_types names 3 layers of 4"),
        ({"num_kv_shared_layers": 1}, "layer 3 shares keys and values with layer 2"),
        ({"num_kv_shared_layers": 4}, "leaves no layer"),
        ({"num_kv_shared_layers": "1"}, "num_kv_shared_layers"),
    ],
    ids=str,
)
def test_a_family_that_does_not_read_the_keys_refuses_them(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    (tmp_path / "model.safetensors").touch()
    for config in (
        LLAMA | changes,
        {"architectures": ["LlavaForConditionalGeneration"], "text_config": LLAMA | changes},
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(StartupError, match=reason):
            load(tmp_path)
