"""Copies of the first tokens of KV blocks."""

from __future__ import annotations

import pytest
import torch

from mmserve.messages.step import BlockCopy
from mmserve.model_backend.attention.kv_layout import copy_leading_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_all_sources_are_read_before_the_first_target_is_written(dtype: torch.dtype) -> None:
    cache = torch.randn(3, 5, 16, 2, 2, 4).to(dtype)  # layers, blocks, tokens, K and V, heads, dim
    kv = cache.view(torch.uint8)
    before = kv.clone()
    copy_leading_tokens(
        cache, [BlockCopy(source=1, target=2, num_tokens=5), BlockCopy(source=2, target=3, num_tokens=15)]
    )
    assert kv[:, 2, :5].equal(before[:, 1, :5])
    assert kv[:, 3, :15].equal(before[:, 2, :15]), "not the tokens that the first copy wrote"
    assert kv[:, 2, 5:].equal(before[:, 2, 5:])
    assert kv[:, 3, 15:].equal(before[:, 3, 15:])
    assert kv[:, [0, 1, 4]].equal(before[:, [0, 1, 4]])
