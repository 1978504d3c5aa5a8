"""Family name (``ModelSpec.family``) -> family. A family's module is imported on first use."""

from __future__ import annotations

from importlib import import_module

from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.checkpoint.vision_families import FAMILIES
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.models.positions import PositionFunction, grid_positions, sequential_positions

_PACKAGE = "mmserve.model_backend.loader.families"


def positions_of(model: ModelSpec) -> PositionFunction:
    """How the model's images change the positions of tokens."""
    if isinstance(model.vision, GenericVision):
        return grid_positions if model.vision.axes > 1 else sequential_positions
    return family_of(model.family).positions


def family_of(name: str) -> Family:
    """All text families share one module."""
    entry = FAMILIES.get(name)
    family = import_module(f"{_PACKAGE}.{'text' if entry is None else entry.loader or name}").FAMILY
    assert isinstance(family, Family)
    return family
