"""The image processor of each model. A family's module is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision_families import FAMILIES
from mmserve.processors.interface import ImageProcessor


def processor_for(model: ModelSpec) -> ImageProcessor | None:
    """The image processor of a model; None for a text model. Raises StartupError."""
    if model.vision is None:
        return None
    family = FAMILIES.get(model.family)
    name = (family and family.processor) or model.family
    module = import_module(f"mmserve.processors.families.{name}")
    return cast(ImageProcessor, module.processor(model))
