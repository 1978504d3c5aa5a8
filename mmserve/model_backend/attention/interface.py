"""The interface of attention backends: causal attention over a paged KV cache.

A backend owns the shape of the KV cache and the block sizes that it can read. One step goes through it in two parts:
its ``MetadataBuilder`` makes the metadata of the step once, and ``forward`` is called with it by every layer.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from mmserve.checkpoint.spec import TextSpec
from mmserve.messages.step import BlockCopy
from mmserve.model_backend.distributed import TpGroup

Int64s = npt.NDArray[np.int64]
M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


class Mask(NamedTuple):
    """Which tokens of its sequence a row attends to: itself and all before it, with two exceptions."""

    window: int | None = None
    """Of those before it, only the last ``window - 1``."""
    whole_images: bool = False
    """A row of an image also attends to those after it in the image (``AttentionInput.image_ends``)."""


CAUSAL = Mask()


class RopeRows(NamedTuple):
    """Which rows of ``layers.rotary.Angles`` turn the heads of a layer.

    They differ where queries have an amplitude of their own.
    """

    queries: int
    keys: int


class HeadTurn(NamedTuple):
    """What is still to be done to the heads of queries and keys before they are stored: norms, then rotation."""

    q_norm: torch.Tensor | None = None
    """[dim], as is ``k_norm``: weights of an RMSNorm. None: no norms."""
    k_norm: torch.Tensor | None = None
    eps: float = 0.0
    cos: torch.Tensor | None = None
    """[ropes, T, pairs], as is ``sin``: see ``layers.rotary.Angles``."""
    sin: torch.Tensor | None = None
    ropes: RopeRows | None = None
    """None: nothing turns."""
    adjacent: bool = False
    """See ``Rope.adjacent``."""

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        return self.cos, self.sin, self.q_norm, self.k_norm


UNTURNED = HeadTurn()
"""Nothing is left to do."""


class AttentionSpec(NamedTuple):
    """The heads of one layer on this rank, their scale, and the masks of all layers."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    masks: tuple[Mask, ...] = (CAUSAL,)
    """The distinct ones."""
    attention_scale: float | None = None
    """See ``TextSpec.attention_scale``."""
    soft_cap: float | None = None
    """Scores s become c * tanh(s / c). No family here has it yet."""

    @classmethod
    def of(cls, text: TextSpec, tp: TpGroup) -> AttentionSpec:
        """This rank's heads of a model."""
        masks = tuple(dict.fromkeys(Mask(layer.window, layer.whole_images) for layer in text.layers))
        heads, kv_heads = tp.share(text.num_heads), tp.heads(text.num_kv_heads).num
        return cls(heads, kv_heads, text.head_dim, masks, text.attention_scale)

    @property
    def scale(self) -> float:
        """Of the products of queries and keys."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def group_size(self) -> int:
        """Query heads for each key head."""
        return self.num_heads // self.num_kv_heads


class StepLimits(NamedTuple):
    """The largest step that a rank is ever given. Static buffers are made for it."""

    max_tokens: int
    max_seqs: int
    max_blocks: int
    """Blocks of one sequence."""
    block_tokens: int


@dataclass(frozen=True)
class AttentionInput:
    """How the T rows of one step belong to sequences: chunks of one row first, longest context first, then the others.

    Chunk i has ``counts[i]`` rows, for the tokens of slot ``slots[i]`` from position ``starts[i]`` on.
    """

    slots: Int64s
    starts: Int64s
    counts: Int64s
    block_tables: Int64s
    """[slots, blocks]: KV blocks of every sequence. Read-only for backends.

    The rank's own table, not a copy: the next plan changes it. A backend copies what it needs after ``build``.
    """
    slot_mapping: Int64s
    """[T]: where the K and V of each row are stored: block * tokens per block + offset."""
    image_ends: Int64s | None = None
    """[T]: the position after each row's image, or after the row itself where it is of none. For masks with
    ``whole_images``; None: no row attends beyond itself."""

    @property
    def num_decodes(self) -> int:
        """Chunks of one row."""
        return int(np.count_nonzero(self.counts == 1))


class MetadataBuilder(Protocol[M_co]):
    """Makes the metadata of a step. It may own static buffers, so its result is valid until the next call."""

    def build(self, step: AttentionInput) -> M_co: ...


class AttentionStep(NamedTuple):
    """One layer's arguments of ``AttentionBackend.forward``."""

    q: torch.Tensor
    kv: torch.Tensor
    layer_kv: torch.Tensor
    metadata: Any
    mask: Mask = CAUSAL
    turn: HeadTurn = UNTURNED


class AttentionBackend(Protocol[M]):
    """Causal attention over the paged KV cache. ``M`` is the backend's own metadata type."""

    @property
    def block_sizes(self) -> Sequence[int]:
        """Tokens in one KV block, best size first."""
        ...

    @property
    def supports_graphs(self) -> bool:
        """True if ``forward`` can be captured in a CUDA graph: static buffers, nothing depends on host values."""
        ...

    def graph_key(self, metadata: M) -> Hashable | None:
        """None: a step with this metadata cannot be captured.

        A graph captured with a step of n rows computes any step of the same key with at most n rows: it reads the
        metadata that ``builder`` has built last. Rows behind those of that step store nothing and attend to nothing.
        """
        ...

    @property
    def turns_heads(self) -> bool:
        """True if ``forward`` does what a ``HeadTurn`` says; else the layer does it, and ``turn`` is ``UNTURNED``."""
        ...

    def kv_shape(self, num_blocks: int, block_tokens: int) -> tuple[int, ...]:
        """Shape of one layer's cache, with ``num_blocks`` as the first dimension."""
        ...

    def builder(self, limits: StepLimits) -> MetadataBuilder[M]: ...

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        layer_kv: torch.Tensor,
        metadata: M,
        mask: Mask = CAUSAL,
        turn: HeadTurn = UNTURNED,
    ) -> torch.Tensor:
        """Turn queries and keys, store the new K and V in ``layer_kv`` (of ``kv_shape``), then attend. Returns
        [T, heads, dim].

        q: [T, heads, dim]. kv: [T, 2, kv_heads, dim], K before V, so that one write stores both. Both are views into
        one [T, width], and may be written over. mask: one of ``AttentionSpec.masks``.
        """
        ...

    def copy_tokens(self, kv_cache: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
        """Copy the first tokens of blocks, in all layers of ``kv_cache`` [layers, *kv_shape].

        All sources are read before the first target is written.
        """
        ...
