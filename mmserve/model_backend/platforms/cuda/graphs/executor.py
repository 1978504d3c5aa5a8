"""Runs decode steps as captured graphs, and all other steps layer by layer.

A step of n rows takes the graph of the next larger number of rows, its rung (``config.graph_ladder``). The rows that
fill it up are zeros: the step's record says how many rows there are, so they read no KV cache and write none, and what
comes of them is cut off.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import torch

from mmserve.config.resolved.graph_ladder import rung_of
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.models.interface import DecoderModel, DeepStackRows
from mmserve.model_backend.platforms.cuda.graphs.capture import Capture, Captured
from mmserve.model_backend.platforms.cuda.graphs.inputs import StepInputs

logger = logging.getLogger(__name__)


class GraphExecutor:
    """See ``platforms.interface.ForwardExecutor``. A graph is captured when a step first needs it.

    So every rung should be computed once before requests come. ``rungs``: ascending.
    """

    def __init__(
        self, model: DecoderModel, attention: AttentionBackend[Any], rungs: Sequence[int], capture: Capture
    ) -> None:
        self.rungs: Sequence[int] = rungs
        self._model, self._attention, self._capture = model, attention, capture
        self._inputs: StepInputs | None = None
        self._graphs: dict[int, Captured] = {}
        self._key: Hashable = None
        """Of the step that the graphs were captured with: see ``AttentionBackend.graph_key``."""

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        logits_indices: torch.Tensor,
        deepstack: DeepStackRows | None = None,
    ) -> torch.Tensor:
        rung, key = rung_of(len(hidden), self.rungs), self._attention.graph_key(metadata)
        if rung is not None and key is not None and deepstack is None and len(positions) == 1:
            inputs = self._inputs or StepInputs(self.rungs[-1], hidden)
            self._inputs = inputs
            self._forget_others((key, kv_cache.data_ptr()))
            if rung not in self._graphs:
                inputs.fill(rung, hidden, positions, logits_indices)
                self._add(rung, inputs, kv_cache, metadata)
            if (graph := self._graphs.get(rung)) is not None:
                inputs.fill(rung, hidden, positions, logits_indices)  # each time: a step writes over them
                graph.replay()
                # Whoever reads it may do so after the next replay.
                return graph.output[: len(logits_indices)].clone()
        return self._model.forward(hidden, positions, kv_cache, metadata, logits_indices, deepstack)

    def _forget_others(self, key: Hashable) -> None:
        """Drop graphs that read other memory than a step of this key."""
        if key != self._key and self._graphs:
            logger.info("a step needed more room than those before: %d graphs are captured again", len(self._graphs))
            self._graphs.clear()
        self._key = key

    def _add(self, rung: int, inputs: StepInputs, kv_cache: torch.Tensor, metadata: Any) -> None:
        """Capture a step of so many rows. If memory runs out, such steps take the next larger graph, if there is one;
        if it fails otherwise, no graph is used any more."""
        hidden, positions, wanted = inputs.of(rung)
        try:
            work = partial(self._model.forward, hidden, positions, kv_cache, metadata, wanted)
            self._graphs[rung] = self._capture(work)
        except torch.OutOfMemoryError as error:
            logger.warning("there is no memory for a graph of %d rows: %s", rung, error)
            self.rungs = tuple(each for each in self.rungs if each != rung)
        except RuntimeError as error:
            logger.warning("steps are computed launch by launch, because they cannot be captured: %s", error)
            self.rungs = ()
            self._graphs.clear()
