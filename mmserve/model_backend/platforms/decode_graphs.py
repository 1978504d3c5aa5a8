"""The interface of captured decode steps: from the tokens of the step before to the next ones, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.models.interface import DecoderModel
from mmserve.model_backend.platforms.sampling import Draw, TokenSampling

Int64s = npt.NDArray[np.int64]
SAMPLED_HERE = -1
"""In place of a token id: the row reads what its slot sampled last."""


class DecodeRows(NamedTuple):
    """Rows of one token each, on the host."""

    slots: Int64s
    token_ids: Int64s
    """Or SAMPLED_HERE."""
    positions: Int64s
    sampling: Int64s
    """Indices of the rows that are sampled from, ascending."""
    draws: Sequence[Draw] = ()
    """Of these rows, on rank 0; none where more than that decides."""


class Decoded(NamedTuple):
    """Of the rows that are sampled from. The next step writes over it."""

    logits: torch.Tensor | None
    """[S, vocab], on rank 0."""
    tokens: torch.Tensor | None
    """int64 [S]: what the rows' ``draws`` chose, on every rank, and what their slots have sampled last from now on.
    None on rank 0 where tokens cannot be drawn within a graph: only the logits count."""
    read: torch.Tensor
    """int64 [S]: the tokens that were computed. A step that is computed again needs them as its slots' last ones."""


class GraphParts(NamedTuple):
    """What a step works on. Tensors stay where they are."""

    model: DecoderModel
    attention: AttentionBackend[Any]
    kv_cache: torch.Tensor
    last_token: torch.Tensor
    """int64 [slots + 1]: by slot, what it sampled last. The last place is nobody's."""
    sampling: TokenSampling | None
    """On rank 0."""
    tp: TpGroup
    rungs: Sequence[int]
    """Numbers of rows to capture, ascending."""
    vocab_size: int
    dtype: torch.dtype
    """Of the model's logits."""


class DecodeGraphs(Protocol):
    """Decode steps of one rank. All ranks call it with the same rows."""

    @property
    def rungs(self) -> Sequence[int]:
        """Numbers of rows that should be computed once before requests come, ascending: each has a graph of its own."""
        ...

    def prepare(self, rows: DecodeRows, metadata: Any) -> None:
        """Work for a step that is likely to come: ``decode`` gets these objects then, unless others come first."""
        ...

    def decode(self, rows: DecodeRows, metadata: Any) -> Decoded | None:
        """None if the step cannot be captured: nothing was computed."""
        ...
