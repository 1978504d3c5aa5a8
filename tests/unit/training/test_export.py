"""A checkpoint directory can be trained on: its networks are read back as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file

from training import export
from training.pictures.world import LEARNED
from training.stages.models import Eye, Text
from training.tokens import Coder


def test_networks_come_back_from_their_directory(tmp_path: Path, coder: Coder) -> None:
    coder.tokenizer.save(str(tmp_path / "tokenizer.json"))
    eye, text = Eye(), Text()
    export.write(tmp_path / "made", eye, text, tmp_path / "tokenizer.json")
    for mine, read in zip((eye, text), export.networks(tmp_path / "made"), strict=True):
        for name, value in mine.state_dict().items():
            assert torch.equal(read.state_dict()[name], value.bfloat16().float()), name


def test_tokens_that_a_directory_does_not_have_are_new(tmp_path: Path) -> None:
    written = export.weights(Eye(), Text())
    for name in export.OF_TOKENS:
        written[f"language_model.{name}"] = written[f"language_model.{name}"][:LEARNED].contiguous()
    save_file(written, tmp_path / "model.safetensors")
    _, text = export.networks(tmp_path)
    for name in export.OF_TOKENS:
        assert torch.equal(
            text.state_dict()[name][:LEARNED],
            load_file(tmp_path / "model.safetensors")[f"language_model.{name}"].float(),
        )
        assert text.state_dict()[name][LEARNED:].abs().min() > 0
