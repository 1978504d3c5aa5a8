"""What a model family says about its checkpoints and models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.models.interface import DecoderModel
from mmserve.model_backend.models.positions import PositionFunction, sequential_positions
from mmserve.model_backend.vision.interface import Tower

_STORED_CONSTANTS = (".rotary_emb.inv_freq", ".position_ids")
"""Suffixes of constants that old checkpoints store although they follow from the config."""


@dataclass(frozen=True)
class Family:
    """A language model and perhaps a vision tower."""

    name_prefixes: Sequence[tuple[str, str]]
    """(prefix of a stored tensor name, prefix used here), first match wins. Used here: text., vision., projector."""
    decoder: Callable[[TextSpec, AttentionBackend[Any], LayerContext], DecoderModel]
    tower: Callable[[Any, int, LayerContext], Tower] | None = None
    """The first argument is the family's ``ModelSpec.vision``, the second the text model's hidden size."""
    positions: PositionFunction = sequential_positions

    def canonical_name(self, stored: str) -> str | None:
        """The tensor name used here, None for a stored constant.

        An unknown name is returned as a text tensor, so that loading reports it.
        """
        if stored.endswith(_STORED_CONSTANTS):
            return None
        for prefix, replacement in self.name_prefixes:
            if stored.startswith(prefix):
                return replacement + stored.removeprefix(prefix)
        return f"text.{stored}"
