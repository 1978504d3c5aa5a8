"""Image processor of Qwen2-VL, Qwen2.5-VL and Qwen3-VL."""

from __future__ import annotations

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.settings import load_settings
from mmserve.processors.smart_resize import AreaLimits, SmartResizeProcessor, SmartResizeSettings


class QwenVlSettings(SmartResizeSettings, frozen=True, kw_only=True):
    """Defaults of Qwen2VLImageProcessor, which all three families use."""

    size: AreaLimits = AreaLimits(shortest_edge=56 * 56, longest_edge=28 * 28 * 1280)
    temporal_patch_size: int = 2


def processor(model: ModelSpec) -> SmartResizeProcessor:
    """Raises StartupError for settings that are unknown or do not fit the vision tower."""
    return SmartResizeProcessor(model, load_settings(model, QwenVlSettings), in_blocks=True)
