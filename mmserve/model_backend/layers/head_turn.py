"""Norms and rotation of the heads of queries and keys by a platform's operations: the reference for backends."""

from __future__ import annotations

import torch

from mmserve.model_backend.attention.interface import HeadTurn
from mmserve.model_backend.layers.ops import Ops


def turn_heads_(ops: Ops, heads: torch.Tensor, num_heads: int, num_kv_heads: int, turn: HeadTurn) -> None:
    """In place; ``heads``: [T, num_heads + 2 * num_kv_heads, dim], queries before keys before values."""
    queries, keys = heads[:, :num_heads], heads[:, num_heads : num_heads + num_kv_heads]
    if turn.q_norm is not None and turn.k_norm is not None:
        ops.head_norm_(queries, turn.q_norm, turn.eps)
        ops.head_norm_(keys, turn.k_norm, turn.eps)
    if turn.ropes is None or turn.cos is None or turn.sin is None:
        return
    parts = [(queries, turn.ropes.queries), (keys, turn.ropes.keys)]
    if turn.ropes.queries == turn.ropes.keys:  # together where they turn alike
        parts = [(heads[:, : num_heads + num_kv_heads], turn.ropes.keys)]
    for part, row in parts:
        ops.rotary_(part, turn.cos[row], turn.sin[row], turn.adjacent)
