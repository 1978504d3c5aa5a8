"""A vision tower of transformers, with the checkpoint's image processor before it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import nn

from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.messages.media import ExpandedImage, Size
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.models.generic.pictures import expanded

View = tuple[torch.Tensor, torch.Tensor]
"""``vision.interface.ViewTensors``: pixels, grids."""


class GenericTower(nn.Module):
    """See ``vision.interface.Tower``. A picture's view is the picture: bytes [1, height, width, 3]."""

    def __init__(self, base: Any, processor: Any, vision: GenericVision, token_id: int) -> None:
        """``base``: a model without output head, which has ``get_image_features``. ``token_id``: of a row."""
        super().__init__()
        self._base, self._processor = base, processor
        self._vision, self._token_id = vision, token_id
        self._accepted = frozenset(inspect.signature(inspect.unwrap(base.get_image_features)).parameters)

    def forward(self, pictures: Sequence[View]) -> list[torch.Tensor]:
        """One picture after the other."""
        return [self._rows(picture) for picture in pictures]

    def _rows(self, picture: View) -> torch.Tensor:
        pixels = picture[0][0].numpy()
        processed = self._processor.image_processor(images=[Image.fromarray(pixels)], return_tensors="pt")
        inputs = {name: self._on_device(value) for name, value in processed.items() if name in self._accepted}
        features = self._base.get_image_features(**inputs)
        found = getattr(features, "pooler_output", features)
        return torch.cat(list(found)) if isinstance(found, list | tuple) else found.flatten(0, -2)

    def expansions(self, sizes: Sequence[Size]) -> list[ExpandedImage | None]:
        """See ``vision.interface.CountsRows``."""
        return [expanded(self._processor, self._vision, self._token_id, *size) for size in sizes]

    def _on_device(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(self._base.device, self._base.dtype if value.is_floating_point() else value.dtype)

    def targets(self) -> dict[str, Target | None]:
        return {}
