"""A model is served only with all of its weights, and only if it computes the same with paged attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.gpt_neox import modeling_gpt_neox

from mmserve.model_backend.models.generic.describe import describe
from mmserve.runtime.errors import StartupError
from tests.fakes.models.checkpoints import make_text
from tests.fakes.ranks.engine import make_runner


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text(tmp_path_factory.mktemp("neox"), "gpt_neox")


def test_layers_that_mix_tokens_are_found(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = modeling_gpt_neox.GPTNeoXMLP.forward

    def mixing(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        return forward(self, hidden + hidden.roll(1, dims=1))

    monkeypatch.setattr(modeling_gpt_neox.GPTNeoXMLP, "forward", mixing)
    with pytest.raises(StartupError, match="something else with paged attention than with its own"):
        make_runner(directory, model=describe(directory))


def test_a_missing_tensor_is_not_invented(directory: Path, tmp_path: Path) -> None:
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["gpt_neox.layers.1.mlp.dense_4h_to_h.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StartupError, match=r"lacks 1 tensors of its model: .*layers\.1\.mlp\.dense_4h_to_h\.weight"):
        make_runner(tmp_path, model=describe(tmp_path))
