"""Copies of the first tokens of KV blocks."""

from __future__ import annotations

import torch

from mmserve.messages.step import BlockCopy
from mmserve.model_backend.attention.kv_layout import copy_leading_tokens


def test_all_sources_are_read_before_the_first_target_is_written() -> None:
    kv = torch.randn(3, 5, 16, 2, 2, 4)  # layers, blocks, tokens, K and V, heads, dim
    before = kv.clone()
    copy_leading_tokens(kv, [BlockCopy(source=1, target=2, num_tokens=5), BlockCopy(source=2, target=3, num_tokens=15)])
    assert kv[:, 2, :5].equal(before[:, 1, :5])
    assert kv[:, 3, :15].equal(before[:, 2, :15]), "not the tokens that the first copy wrote"
    assert kv[:, 2, 5:].equal(before[:, 2, 5:])
    assert kv[:, 3, 15:].equal(before[:, 3, 15:])
    assert kv[:, [0, 1, 4]].equal(before[:, [0, 1, 4]])
