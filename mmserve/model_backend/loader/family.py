"""The classes of a model family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.models.interface import DecoderModel
from mmserve.model_backend.models.positions import PositionFunction, sequential_positions
from mmserve.model_backend.vision.interface import Tower


@dataclass(frozen=True)
class Family:
    """A language model and perhaps a vision tower."""

    decoder: Callable[[TextSpec, AttentionBackend[Any], LayerContext], DecoderModel]
    tower: Callable[[Any, int, LayerContext], Tower] | None = None
    """The first argument is the family's ``ModelSpec.vision``, the second the text model's hidden size."""
    positions: PositionFunction = sequential_positions
