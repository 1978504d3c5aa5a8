"""A language model of transformers as the rest of the backend sees one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.attention.interface import AttentionBackend, Mask
from mmserve.model_backend.layers.target import Targets
from mmserve.model_backend.models.generic.attention import PagedStep, computing
from mmserve.model_backend.models.generic.parts import ModelParts
from mmserve.model_backend.models.interface import DecoderWeights, DeepStackRows


class GenericDecoder(nn.Module):
    """See ``models.interface.DecoderModel``. One rank, with all weights loaded.

    The layers are computed for all rows up to the final norm, so ``forward`` selects rows of normalized outputs.
    """

    def __init__(self, model: Any, spec: TextSpec, backend: AttentionBackend[Any]) -> None:
        super().__init__()
        self.parts, self._backend = ModelParts(model), backend
        self._masks = tuple(Mask(layer.window) for layer in spec.layers)
        self._scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
        self._vocab_size = spec.vocab_size

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.parts.embed(token_ids)

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        logits_indices: torch.Tensor | None,
        deepstack: DeepStackRows | None = None,
    ) -> torch.Tensor:
        """Rows are as wide as the model's hidden states, so that nothing comes for ``deepstack``."""
        with computing(PagedStep(self._backend, self._masks, self._scale, kv_cache, metadata)):
            outputs = self.parts.outputs(hidden, positions)
        return outputs if logits_indices is None else outputs[logits_indices]

    def normalized(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Without columns for ids that the embedding does not have."""
        return self.parts.logits(hidden)[:, : self._vocab_size]

    def targets(self) -> Targets:
        return {}

    @property
    def is_capturable(self) -> bool:
        """What transformers' code does is not known."""
        return False

    def decoder_weights(self) -> DecoderWeights | None:
        return None
