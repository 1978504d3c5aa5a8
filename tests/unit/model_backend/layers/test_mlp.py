"""A step of many rows goes through an MLP in parts, and no row can tell."""

from __future__ import annotations

from pathlib import Path

import torch

from mmserve.checkpoint.load import load
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.mlp import CPU_ROWS, GatedMlp
from tests.fakes.checkpoints import make_llama


@torch.inference_mode()
def test_many_rows_are_what_each_is_alone(tmp_path: Path) -> None:
    spec = load(make_llama(tmp_path)).text
    mlp = GatedMlp(spec, tp=TpGroup(), like=torch.empty(0))
    torch.manual_seed(0)
    for weight in mlp.parameters():
        weight.normal_(std=0.2)
    rows = 2 * CPU_ROWS + 3
    x, onto = torch.randn(rows, spec.hidden_size), torch.randn(rows, spec.hidden_size)
    expected = [mlp(x[row : row + 1], onto[row : row + 1].clone()) for row in range(0, rows, 100)]
    assert mlp(x, onto) is onto
    torch.testing.assert_close(onto[::100], torch.cat(expected))
