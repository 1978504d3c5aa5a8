"""Every family's weights load under the names of its published files and under those of transformers 5 in memory.

A model's parameters are compared, all of which its logits follow from.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from msgspec.structs import replace
from safetensors.torch import load_file, save_file

from mmserve.checkpoint.config.rope_config import for_context
from mmserve.checkpoint.load import load
from mmserve.checkpoint.registry import ARCHITECTURES
from mmserve.checkpoint.spec import ModelSpec
from mmserve.model_backend.attention.interface import AttentionSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.load import load_decoder, load_tower
from mmserve.model_backend.platforms.reference import TorchPlatform
from tests.fakes.models.checkpoints import TEXT_FAMILIES, make_llama, make_llava, make_text, rename_weights
from tests.fakes.models.idefics3 import make_idefics3
from tests.fakes.models.qwen_vl import CONFIGS, make_qwen_vl
from tests.fakes.models.vision_checkpoints import FAMILIES, make_native_internvl, make_vision

Make = Callable[[Path], object]
MAKE: dict[str, Make] = {
    "llama": make_llama,
    "llava": make_llava,
    "idefics3": make_idefics3,
    **{family: partial(make_text, family=family) for family in TEXT_FAMILIES},
    **{family: partial(make_vision, family=family) for family in FAMILIES},
    **{family: partial(make_qwen_vl, family=family) for family in CONFIGS},
}
SAME_NAMES = ("idefics3", "qwen3_vl", "qwen3_vl_moe")
"""Families with pictures whose files have the names of the models in memory."""
OLDER = ("llava", "llava_next", "llava_onevision", "gemma3")
"""Published with another name of the tower."""


def parameters(model: ModelSpec) -> dict[str, torch.Tensor]:
    """Of the language model and of the tower, by their names here."""
    platform = TorchPlatform(torch.device("cpu"), torch.float32)
    text = for_context(model.text, model.text.max_position)
    attention = platform.attention(AttentionSpec(text.num_heads, text.num_kv_heads, text.head_dim), torch.float32)
    targets = dict(
        load_decoder(replace(model, text=text), platform, attention, TpGroup(), "none", lambda *event: None).targets()
    )
    if model.vision is not None:
        targets |= load_tower(model, platform, lambda *event: None).targets()
    return {name: target.into for name, target in targets.items() if target is not None}


def assert_same_parameters(found: Path, expected: Path) -> None:
    ours, wanted = parameters(load(found)), parameters(load(expected))
    assert ours.keys() == wanted.keys()
    assert [name for name, tensor in ours.items() if not torch.equal(tensor, wanted[name])] == []


def in_memory(directory: Path) -> dict[str, torch.Tensor]:
    """The tensors of transformers' model with its own names."""
    config = transformers.AutoConfig.from_pretrained(directory)
    auto = transformers.AutoModelForCausalLM
    if hasattr(config, "vision_config"):
        auto = transformers.AutoModelForImageTextToText
    model = auto.from_pretrained(directory, dtype=torch.float32)
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_all_families_are_here() -> None:
    # A native InternVL has no classes in transformers and a test of its own.
    assert MAKE.keys() | {"internvl_chat"} == set(ARCHITECTURES.values()) | {"pixtral"}


@pytest.mark.parametrize("family", MAKE)
def test_names_in_memory(tmp_path: Path, family: str) -> None:
    saved = tmp_path / "saved"
    MAKE[family](saved)
    renamed, tensors = shutil.copytree(saved, tmp_path / "renamed"), in_memory(saved)
    save_file(tensors, renamed / "model.safetensors", metadata={"format": "pt"})
    assert_same_parameters(renamed, saved)
    stored = {name for name in load_file(saved / "model.safetensors") if "lm_head" not in name}
    is_text = family in (*TEXT_FAMILIES, "llama")
    assert (stored <= tensors.keys()) == (family in SAME_NAMES or (is_text and family != "qwen3_moe"))


@pytest.mark.parametrize("family", OLDER)
def test_older_names_of_towers(tmp_path: Path, family: str) -> None:
    MAKE[family](tmp_path / "saved")
    renamed = shutil.copytree(tmp_path / "saved", tmp_path / "renamed")
    rename_weights(renamed, ("vision_tower.", "vision_tower.vision_model."))
    assert_same_parameters(renamed, tmp_path / "saved")


def test_an_internvl_in_its_authors_format(tmp_path: Path) -> None:
    """Its tower's projections of queries, keys and values are one tensor in the model too."""
    saved = make_vision(tmp_path / "saved", "internvl")
    native = make_native_internvl(tmp_path / "native", saved)
    ours, wanted = parameters(load(native)), parameters(load(saved))
    fused = {name for name in ours.keys() ^ wanted.keys() if ".attention." in name}
    assert fused == ours.keys() ^ wanted.keys()
    assert all(torch.equal(ours[name], wanted[name]) for name in ours.keys() & wanted.keys())
    for name in fused & ours.keys():
        parts = [wanted[name.replace(".qkv.", f".{each}_proj.")] for each in "qkv"]
        assert torch.equal(ours[name], torch.cat(parts))
