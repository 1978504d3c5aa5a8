"""Qwen2.5-VL (Bai et al. 2025): Qwen2-VL with windows in the tower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.families.vision import qwen2_vl
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.qwen_vl import Qwen25Vision
from mmserve.runtime.errors import StartupError


class VisionJson(qwen2_vl.PatchJson, kw_only=True):
    depth: int = 32
    hidden_size: int = 3584
    intermediate_size: int = 3420
    hidden_act: str = "silu"
    out_hidden_size: int = 3584
    window_size: int = 112
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)

    def spec(self, text_hidden_size: int) -> Qwen25Vision:
        """Raises StartupError for what is not supported."""
        qwen2_vl.check_width(self.out_hidden_size, text_hidden_size)
        spec = Qwen25Vision(
            num_layers=self.depth,
            intermediate_size=self.intermediate_size,
            window_size=self.window_size,
            full_attention_layers=self.fullatt_block_indexes,
            **self.shared_fields(self.hidden_size, self.hidden_act),
        )
        if spec.window_squares < 1:
            raise StartupError(f"window_size {self.window_size} is less than a merged square of patches")
        return spec


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    return qwen2_vl.read(
        directory, raw, "qwen2_5_vl", qwen2_vl.Config, lambda vision, size: convert(vision, VisionJson).spec(size)
    )
