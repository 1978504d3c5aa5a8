"""PaddleOCR-VL (Cui et al. 2025): SigLIP for pictures of any size before an ERNIE 4.5 with positions of three axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.config.multimodal import MultimodalJson
from mmserve.checkpoint.families.text import ernie4_5
from mmserve.checkpoint.spec import ModelSpec, Rope
from mmserve.checkpoint.vision.paddleocr_vl import PaddleOcrVision
from mmserve.checkpoint.vision.siglip import SiglipJson
from mmserve.runtime.errors import StartupError

_SECTIONS = (16, 24, 24)
"""Pairs of a head that turn by time, row and column, where config.json does not say."""


class TextConfig(ernie4_5.Config, kw_only=True):
    def rope(self) -> Rope:
        """As in Llama, not as in ERNIE."""
        rope = super().rope()
        return replace(rope, adjacent=False, sections=rope.sections or _SECTIONS)


class RopeJson(msgspec.Struct, kw_only=True):
    rope_theta: float = 10_000.0


class VisionJson(SiglipJson, kw_only=True):
    """Defaults are those of PaddleOCRVisionConfig."""

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 27
    num_attention_heads: int = 16
    image_size: int = 384
    patch_size: int = 14
    spatial_merge_size: int = 2
    rope_parameters: RopeJson | None = None

    def spec(self) -> PaddleOcrVision:
        """Raises StartupError for what is not supported."""
        if self.hidden_size % (4 * self.num_attention_heads):
            raise StartupError("vision_config: only heads of a multiple of 4 are supported")
        return PaddleOcrVision(
            merge_size=self.spatial_merge_size,
            patches_per_row=self.spatial_merge_size**2,
            rope_theta=(self.rope_parameters or RopeJson()).rope_theta,
            **self.fields(),
        )


class PaddleOcrJson(MultimodalJson, kw_only=True):
    """``text_config`` is missing in the published files, which have its fields at the top."""

    default_token_id: ClassVar[int] = 100295
    default_token: ClassVar[str] = "<|IMAGE_PLACEHOLDER|>"

    vision_config: VisionJson = msgspec.field(default_factory=VisionJson)


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    config = convert(raw, PaddleOcrJson)
    text = convert(config.text_config or raw, TextConfig)
    return config.model_spec(directory, "paddleocr_vl", text, config.vision_config.spec())
