"""The towers of LLaVA-NeXT and LLaVA-OneVision (Liu et al. 2024): the rows of a picture's tiles become one picture.

The first tile is the whole picture. The others are a grid with margins, which are cut off. A learned row ends lines.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from mmserve.checkpoint.vision.anyres import LlavaNextVision, LlavaOnevisionVision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.clip import VisionTower
from mmserve.model_backend.vision.interface import ViewTensors
from mmserve.model_backend.vision.parts.projector import Projector
from mmserve.model_backend.vision.parts.siglip import SiglipEncoder
from mmserve.model_backend.vision.parts.tiles import encode_tiles

_NEWLINE = "projector.image_newline"


class AnyResTower(nn.Module):
    """``encode``: a tower and projector of tiles alone."""

    def __init__(self, encode: VisionTower | OnevisionEncoder, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self.encode = encode
        self.newline = context.empty(text_hidden_size)

    @torch.inference_mode()
    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        """Pictures of tiles [k, 3, image_size, image_size] -> rows [rows, text hidden] of each.

        Grids of a picture: (1, rows, columns) of its tiles, then of their features without margins, then perhaps of
        the features that these are resampled to. Of a picture with one tile only: (1, 0, 0).
        """
        pairs = zip(self.encode(pictures), pictures, strict=True)
        return [self._assembled(rows.view(len(picture.values), -1, rows.shape[1]), picture) for rows, picture in pairs]

    def _assembled(self, tiles: torch.Tensor, picture: ViewTensors) -> torch.Tensor:
        """``tiles``: [k, rows, text hidden]."""
        whole, hidden = tiles[0], tiles.shape[2]
        if len(tiles) == 1:
            return torch.cat((whole, self.newline[None]))
        (rows, columns), (height, width), *resampled = [(int(h), int(w)) for _, h, w in picture.grids]
        side = round(whole.shape[0] ** 0.5)
        grid = tiles[1:].view(rows, columns, side, side, hidden).transpose(1, 2).reshape(rows * side, -1, hidden)
        top, left = (grid.shape[0] - height) // 2, (grid.shape[1] - width) // 2
        grid = grid[top : top + height, left : left + width]
        for size in resampled:
            grid = _resampled(grid, size)
        lines = torch.cat((grid, self.newline.expand(len(grid), 1, hidden)), dim=1)
        return torch.cat((whole, lines.flatten(0, 1)))

    def targets(self) -> dict[str, Target | None]:
        return self.encode.targets() | {_NEWLINE: Target(self.newline, tuple(self.newline.shape))}


class OnevisionEncoder(nn.Module):
    """SigLIP and a two-layer projector."""

    def __init__(self, spec: LlavaOnevisionVision, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self.encoder = SiglipEncoder(spec, has_last_norm=False, context=context.below("vision."))
        self.projector = Projector(
            spec.hidden_size,
            text_hidden_size,
            text_hidden_size,
            activation=spec.projector_activation,
            bias=spec.projector_bias,
            context=context.below("projector."),
        )

    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        """Tiles [k, 3, image_size, image_size] -> [k * patches, text hidden] of each picture."""
        return encode_tiles(pictures, lambda tiles: self.projector(self.encoder(tiles)))

    def targets(self) -> dict[str, Target | None]:
        found = dict(self.encoder.targets())
        found.update(self.projector.targets())
        return found


def llava_next_tower(spec: LlavaNextVision, text_hidden_size: int, context: LayerContext) -> AnyResTower:
    return AnyResTower(VisionTower(spec, text_hidden_size, context=context), text_hidden_size, context=context)


def onevision_tower(spec: LlavaOnevisionVision, text_hidden_size: int, context: LayerContext) -> AnyResTower:
    return AnyResTower(OnevisionEncoder(spec, text_hidden_size, context=context), text_hidden_size, context=context)


def _resampled(grid: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """[height, width, hidden] -> [*size, hidden], bilinear."""
    if grid.shape[:2] == size:
        return grid
    resampled = F.interpolate(grid.permute(2, 0, 1)[None], size, mode="bilinear", align_corners=False)
    return resampled[0].permute(1, 2, 0)
