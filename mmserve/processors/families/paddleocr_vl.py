"""Image processor of PaddleOCR-VL."""

from __future__ import annotations

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.pixels.sources import Size
from mmserve.processors.settings import load_settings
from mmserve.processors.smart_resize import AreaLimits, SmartResizeProcessor, SmartResizeSettings


class PaddleOcrVlSettings(SmartResizeSettings, frozen=True, kw_only=True):
    """Defaults of PaddleOCRVLImageProcessor."""

    size: AreaLimits = AreaLimits(shortest_edge=384 * 384, longest_edge=1536 * 1536)
    temporal_patch_size: int = 1


def processor(model: ModelSpec) -> PaddleOcrVlProcessor:
    """Raises StartupError for settings that are unknown or do not fit the vision tower."""
    return PaddleOcrVlProcessor(model, load_settings(model, PaddleOcrVlSettings), in_blocks=False)


class PaddleOcrVlProcessor(SmartResizeProcessor):
    """Patches stand line by line. A side of less than one row is enlarged before the choice of size."""

    def resized_size(self, width: int, height: int) -> Size:
        """Raises MediaError for a picture that is too long and thin."""
        side = self._patches.row_side
        if height < side:
            width, height = round(width * side / height), side
        if width < side:
            width, height = side, round(height * side / width)
        return super().resized_size(width, height)
