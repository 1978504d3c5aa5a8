"""benchmarks.text_families: mmserve reads the shapes, rates are compared for each parameter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.checkpoints.shapes import SMALL
from benchmarks.checkpoints.text_shapes import TEXT_SHAPES, num_parameters, text_config
from benchmarks.text_families import Round, compared
from mmserve.checkpoint.registry import read_model


@pytest.mark.parametrize("name", TEXT_SHAPES)
def test_mmserve_reads_the_shapes_as_their_families(tmp_path: Path, name: str) -> None:
    config = text_config(name, SMALL).to_dict() | {"architectures": [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name]]}
    model = read_model(tmp_path, config)
    assert (model.family, len(model.text.layers), model.text.hidden_size) == (name, 30, 576)


def test_parameters_of_a_checkpoint_are_counted(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3, 5), "b": torch.zeros(7)}, tmp_path / "model.safetensors")
    assert num_parameters(tmp_path) == 22


def test_a_rate_counts_for_each_parameter_beside_that_of_the_same_round() -> None:
    """The machine is half as fast in the second round, and in the last while Qwen3 is measured."""

    def one_round(**rates: float) -> Round:
        return {family: dict.fromkeys(("prefill", "decode", "batch"), rate) for family, rate in rates.items()}

    found = compared(
        [
            one_round(llama=10.0, qwen2=5.0, qwen3=9.0),
            one_round(llama=5.0, qwen2=2.5, qwen3=4.5),
            one_round(llama=10.0, qwen2=5.0, qwen3=4.5),
        ],
        {"llama": 1.0, "qwen2": 2.0, "qwen3": 1.0},
    )
    assert [(each["got"], each["met"]) for each in found] == [(1.0, "yes")] * 3 + [(0.9, "no")] * 3
