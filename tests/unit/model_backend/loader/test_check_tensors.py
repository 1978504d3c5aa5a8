"""Tensors that are wrong are found without reading them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmserve.model_backend.loader.check_tensors import main
from tests.fakes.models.checkpoints import make_llama, make_text
from tests.fakes.models.idefics3 import make_idefics3
from tests.fakes.models.qwen_vl import make_qwen_vl
from tests.fakes.models.vision_checkpoints import make_vision

Tensors = dict[str, torch.Tensor]
PATCHES = "model.vision_model.embeddings.patch_embedding.weight"
NORM = "model.text_model.norm.weight"
UNKNOWN = "model.text_model.layers.0.self_attn.sinks"


def without(tensors: Tensors, name: str) -> None:
    del tensors[name]


def shorter(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name][:-1].clone()


def added(tensors: Tensors, name: str) -> None:
    tensors[name] = torch.zeros(3)


@pytest.mark.parametrize(
    "make",
    [
        make_llama,
        partial(make_text, family="phi3"),
        partial(make_text, family="qwen3_moe"),
        partial(make_qwen_vl, family="qwen3_vl"),
        partial(make_vision, family="gemma3"),
        partial(make_vision, family="paddleocr_vl"),
    ],
    ids=["llama", "phi3", "qwen3_moe", "qwen3_vl", "gemma3", "paddleocr_vl"],
)
def test_checkpoints_that_load_have_no_problem(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path)
    assert main(str(tmp_path)) == 0


@pytest.mark.parametrize(
    ("change", "name", "says"),
    [
        (without, NORM, "lacks 1 tensors of its model: text.norm.weight"),
        (without, PATCHES, "lacks 1 tensors of its model: vision.embeddings.patch_embedding.weight"),
        (shorter, NORM, f"tensor {NORM} has shape [63], config.json says [64]"),
        (added, UNKNOWN, f"unexpected tensor {UNKNOWN}"),
    ],
    ids=["missing", "missing in the tower", "shape", "left over"],
)
def test_a_tensor_that_is_wrong_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Tensors, str], None],
    name: str,
    says: str,
) -> None:
    make_idefics3(tmp_path)
    assert main(str(tmp_path)) == 0
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors, name)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert main(str(tmp_path)) == 1
    assert says in capsys.readouterr().out
