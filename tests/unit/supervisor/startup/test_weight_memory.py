"""What weights take in memory, by the headers of their files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.checkpoint.spec import ModelSpec
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.startup.weight_memory import loaded_nbytes, part_nbytes, quantized_nbytes
from tests.fakes.models.weight_files import sparse_weights
from tests.unit.supervisor.startup.test_plan import model

__all__ = ["model"]
"""A LLaVA with the text model of a Llama of 7B."""


def test_names_tell_the_tower_from_the_text_model(model: ModelSpec) -> None:
    names = {"language_model.lm_head.weight": 7, "vision_tower.x": 3, "multi_modal_projector.y": 2, "model.norm": 5}
    sparse_weights(Path(model.path), names)
    assert part_nbytes(model, "bfloat16") == (12 * 2, 5 * 2)
    assert part_nbytes(model, "float32") == (12 * 4, 5 * 4)


def test_the_copy_of_a_tied_head_is_not_loaded(model: ModelSpec) -> None:
    sparse_weights(Path(model.path), {"language_model.lm_head.weight": 7, "model.norm": 5})
    tied = replace(model, text=replace(model.text, tie_embeddings=True))
    assert part_nbytes(tied, "float32") == (20, 0)


def test_codes_are_counted_as_stored_and_other_numbers_in_float32(model: ModelSpec) -> None:
    tensors = {"a.qweight": torch.zeros(64, 32, dtype=torch.int32), "b.weight": torch.zeros(10, 10).half()}
    save_file(tensors, Path(model.path) / "model.safetensors")
    scheme = QuantizationScheme(method="AWQ", layout="awq", bits=4, group_size=128, zero_points=True)
    assert loaded_nbytes(replace(model, quantization=scheme), "float32", "none") == 64 * 32 * 4 + 10 * 10 * 4


def test_weights_are_in_float32_until_a_cpu_has_quantized_them(model: ModelSpec) -> None:
    short, long = (quantized_nbytes(model, 0, dtype, "int8") for dtype in ("bfloat16", "float32"))
    assert short == long


def test_a_file_without_a_header_is_refused_by_name(model: ModelSpec) -> None:
    (Path(model.path) / "model.safetensors").write_bytes(b"<html>")
    with pytest.raises(StartupError, match=r"model\.safetensors is not a readable safetensors file"):
        part_nbytes(model, "float32")
