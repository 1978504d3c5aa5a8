"""An MLP computes a step of many rows in parts, with the same result for every row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from mmserve.checkpoint.load import load
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.mlp import GatedMlp
from mmserve.model_backend.platforms.reference import TorchPlatform
from tests.fakes.models.checkpoints import make_llama


@torch.inference_mode()
def test_many_rows_computed_in_parts_equal_each_row_alone(tmp_path: Path) -> None:
    spec = load(make_llama(tmp_path)).text
    context = TorchPlatform(torch.device("cpu"), torch.float32).layer_context(TpGroup())
    mlp = GatedMlp(spec, context=replace(context, max_mlp_rows=512))
    torch.manual_seed(0)
    for _, target in mlp.targets():
        target.into.normal_(std=0.2)
    rows = 2 * 512 + 3
    x, residual = torch.randn(rows, spec.hidden_size), torch.randn(rows, spec.hidden_size)
    expected = [mlp(x[row : row + 1], residual[row : row + 1].clone()) for row in range(0, rows, 100)]
    assert mlp(x, residual) is residual
    torch.testing.assert_close(residual[::100], torch.cat(expected))
