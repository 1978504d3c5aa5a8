"""What an attention implementation is given and must return. Shapes only; knows no model and no sequence state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AttentionInput:
    """How the T rows of one step belong to sequences: steps of one row first, longest context first, then chunks.

    Step i has ``counts[i]`` rows, for the tokens of ``slots[i]`` from position ``starts[i]`` on.
    """

    slots: Int64s
    starts: Int64s
    counts: Int64s
    blocks: Int64s
    """[slots, blocks]: KV blocks of every sequence."""
    kv_slots: Int64s
    """[T]: block * tokens per block + offset, where each row's K and V are kept."""
    like: torch.Tensor
    """Gives masks their dtype and all tensors their device."""

    @property
    def num_decodes(self) -> int:
        """Steps of one row."""
        return int(np.count_nonzero(self.counts == 1))


class Attention(Protocol):
    """Causal attention over the paged KV cache."""

    def prepare(self, rows: AttentionInput) -> Any:
        """What all layers of a step need, made once."""
        ...

    def __call__(self, q: torch.Tensor, kv: torch.Tensor, layer_kv: torch.Tensor, prepared: Any) -> torch.Tensor:
        """Store the new K and V, then attend.

        q: [T, heads, dim]. kv: [T, 2, kv_heads, dim], K before V; both are views into one [T, width]. layer_kv:
        [blocks, tokens, 2, kv_heads, dim], the layer's cache, changed in place. Returns [T, heads, dim].
        """
        ...
