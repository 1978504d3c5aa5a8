"""A language model of transformers in three parts: token embedding, layers, output head."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from mmserve.runtime.errors import StartupError


class _Outputs:
    """Of layers that were not computed: what a class passes on besides the hidden states is None."""

    def __init__(self, last_hidden_state: torch.Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getitem__(self, index: Any) -> Any:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class _PassThrough(nn.Module):
    """Stands in for the layers: gives back the embeddings that it is given."""

    def forward(self, *token_ids: None, inputs_embeds: torch.Tensor, **options: object) -> _Outputs:
        return _Outputs(inputs_embeds)


class ModelParts(nn.Module):
    """``whole``: a model of transformers with an output head, which stays usable as it is.

    Raises StartupError if it has other parts.
    """

    def __init__(self, whole: Any) -> None:
        super().__init__()
        if whole.base_model is whole:
            raise StartupError(f"{type(whole).__name__} is not made of layers and an output head")
        self.whole = whole
        self.layers = whole.base_model
        # What a class does behind its layers (scales, soft caps) is done by the class, in a copy without the layers.
        head = copy.copy(whole)
        head._modules = {**whole._modules, whole.base_model_prefix: _PassThrough()}
        self._head: tuple[Any] = (head,)  # not a submodule: its parameters belong to ``whole``

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden]."""
        return self.whole.get_input_embeddings()(token_ids)  # type: ignore[no-any-return]

    def outputs(
        self, hidden: torch.Tensor, positions: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[T, hidden] at positions int64 [axes, T] -> [T, hidden] after the final norm.

        The rows are passed as one sequence; only attention, which is not computed here, tells sequences apart.
        """
        ids = positions if len(positions) == 1 else positions[:, None]
        found = self.layers(
            inputs_embeds=hidden[None], position_ids=ids, attention_mask=attention_mask, use_cache=False
        )
        return found.last_hidden_state[0]  # type: ignore[no-any-return]

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """[S, hidden] of ``outputs`` -> [S, vocab]."""
        return self._head[0](inputs_embeds=outputs[None], use_cache=False).logits[0]  # type: ignore[no-any-return]
