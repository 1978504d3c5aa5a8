"""Runs decode steps as captured graphs: embedding, layers, output head, sampling, and the exchange of ranks.

A step of n rows takes the graph of the next larger number of rows, its rung (``config.resolved.graph_ladder``). The
attention's record says how many rows there are, so the rows that fill it up read no KV cache and write none; their
tokens go to a place that is nobody's.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import torch

from mmserve.config.resolved.graph_ladder import rung_of
from mmserve.model_backend.platforms.cuda.graphs.capture import Capture, Captured
from mmserve.model_backend.platforms.cuda.graphs.inputs import RowInputs, StepInputs
from mmserve.model_backend.platforms.decode_graphs import Decoded, DecodeRows, GraphParts
from mmserve.model_backend.transfers import Transfers

_CAPTURED, _NO_MEMORY, _FAILED = 0, 1, 2
"""Worst last."""

logger = logging.getLogger(__name__)
_Output = tuple[torch.Tensor, ...]
"""Tokens, those that were read, and logits on rank 0."""


class CapturedDecodes:
    """See ``platforms.decode_graphs.DecodeGraphs``. A graph is captured when a step first needs it.

    So every rung should be computed once before requests come.
    """

    def __init__(self, parts: GraphParts, transfers: Transfers, capture: Capture) -> None:
        self.rungs: Sequence[int] = parts.rungs
        self._parts, self._capture, self._transfers = parts, capture, transfers
        self._inputs = StepInputs(parts.rungs[-1], len(parts.last_token) - 1, transfers)
        self._graphs: dict[int, Captured[_Output]] = {}
        # One place for the logits of all graphs, which would else keep their own.
        room = (parts.rungs[-1], parts.vocab_size)
        self._logits = None
        if parts.sampling is not None:
            self._logits = torch.empty(room, dtype=parts.dtype, device=transfers.device)
        self._draws = parts.sampling is not None and parts.sampling.in_graphs
        """On rank 0: tokens are drawn within a graph."""
        self._key: Hashable = None
        """Of the step that the graphs were captured with: see ``AttentionBackend.graph_key``."""

    def prepare(self, rows: DecodeRows, metadata: Any) -> None:
        """Nothing: the host is ahead of the device."""

    @torch.inference_mode()
    def decode(self, rows: DecodeRows, metadata: Any) -> Decoded | None:
        rung, key = rung_of(len(rows.slots), self.rungs), self._parts.attention.graph_key(metadata)
        if rung is None or key is None:
            return None
        self._forget_others(key)
        if rung not in self._graphs:
            # A capture computes the step as well: nobody gets its tokens.
            self._inputs.fill(rung, rows._replace(sampling=rows.sampling[:0], draws=()))
            self._add(rung, self._inputs.of(rung), metadata)
        if (graph := self._graphs.get(rung)) is None:
            return None
        self._inputs.fill(rung, rows)
        count, index = len(rows.sampling), None
        if count < len(rows.slots):
            index = self._transfers.to_device(torch.from_numpy(rows.sampling))
        graph.replay()
        tokens, read, *logits = (
            each[:count] if index is None else each.index_select(0, index) for each in graph.output
        )
        return Decoded(logits[0], tokens if self._draws else None, read) if logits else Decoded(None, tokens, read)

    def _step(self, inputs: RowInputs, metadata: Any) -> _Output:
        model, _, kv_cache, last_token, sampling, tp, *_ = self._parts
        known = inputs.token_ids
        ids = torch.where(known >= 0, known, last_token.index_select(0, inputs.slots))
        logits = model.logits(model.forward(model.embed(ids), inputs.positions, kv_cache, metadata, None))
        tokens = torch.zeros_like(ids)
        if logits is not None and sampling is not None and self._draws:
            tokens = sampling.choose_by(logits, inputs.draws)
        tokens = tp.broadcast(tokens)
        last_token.index_copy_(0, inputs.targets, tokens.clamp(min=0))
        if logits is None or self._logits is None:
            return tokens, ids
        return tokens, ids, self._logits[: len(logits)].copy_(logits)

    def _forget_others(self, key: Hashable) -> None:
        """Drop graphs that read other memory than a step of this key."""
        if key != self._key and self._graphs:
            logger.info("a step needed more room than those before: %d graphs are captured again", len(self._graphs))
            self._graphs.clear()
        self._key = key

    def _add(self, rung: int, inputs: RowInputs, metadata: Any) -> None:
        """Capture a step of so many rows. If memory runs out, later ones take the next larger graph, if there is one;
        if it fails otherwise, no graph is used any more. All ranks do the same: a graph has collectives of its own.

        With several ranks, raises errors of the runs before the capture: the devices of the others may wait for this
        rank's part of a sum, and with them their hosts. Within the capture no device computes."""
        found, work, alone = _CAPTURED, partial(self._step, inputs, metadata), self._parts.tp.size == 1
        if not alone:
            self._capture.run(work)
        try:
            if alone:
                self._capture.run(work)
            self._graphs[rung] = self._capture(work)
        except torch.OutOfMemoryError as error:
            found = _NO_MEMORY
            logger.warning("there is no memory for a graph of %d rows: %s", rung, error)
        except RuntimeError as error:
            found = _FAILED
            logger.warning("steps are computed launch by launch, because they cannot be captured: %s", error)
        (worst,) = self._parts.tp.worst([found])
        if worst != found:
            logger.warning("another rank could not capture a graph of %d rows", rung)
        if worst == _NO_MEMORY:
            self.rungs = tuple(each for each in self.rungs if each != rung)
            self._graphs.pop(rung, None)
        elif worst == _FAILED:
            self.rungs = ()
            self._graphs.clear()
