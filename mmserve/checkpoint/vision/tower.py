"""What the specs of all vision towers have in common."""

from __future__ import annotations

import msgspec


class TowerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A vision transformer. Each architecture refines it in a struct with a ``tag`` of its own."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    """Pixels."""
    activation: str
    layer_norm_eps: float
    patches_per_row: int = 1
    """Patches that become one row of the language model."""
    streams: int = 1
    """A row is this many times as wide as the language model's hidden size."""
