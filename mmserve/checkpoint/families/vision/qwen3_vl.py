"""Qwen3-VL, dense: Qwen3 with three interleaved axes of positions, behind a tower with DeepStack (Meng et al. 2024)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.config.text_config import TextJson
from mmserve.checkpoint.families.text import qwen3
from mmserve.checkpoint.families.vision import qwen2_vl
from mmserve.checkpoint.spec import ModelSpec, Rope
from mmserve.checkpoint.vision.qwen_vl import Qwen3Vision
from mmserve.runtime.errors import StartupError


class Config(qwen3.Config, kw_only=True):
    default_theta: ClassVar[float] = 500_000.0

    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 128000

    def rope(self) -> Rope:
        return interleaved(super().rope())


def interleaved(rope: Rope) -> Rope:
    """The axes of all models of the family alternate."""
    return replace(rope, sections=rope.sections or (24, 20, 20), interleaved=True)


class VisionJson(qwen2_vl.PatchJson, kw_only=True):
    depth: int = 27
    hidden_size: int = 1152
    hidden_act: str = "gelu_pytorch_tanh"
    intermediate_size: int = 4304
    patch_size: int = 16
    out_hidden_size: int = 3584
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)

    def spec(self, text_hidden_size: int) -> Qwen3Vision:
        """Raises StartupError for what is not supported."""
        qwen2_vl.check_width(self.out_hidden_size, text_hidden_size)
        side, layers = math.isqrt(self.num_position_embeddings), self.deepstack_visual_indexes
        if side * side != self.num_position_embeddings:
            raise StartupError(f"num_position_embeddings {self.num_position_embeddings} is not a square number")
        if layers != tuple(sorted(set(layers) & set(range(self.depth)))):
            raise StartupError(f"deepstack_visual_indexes {layers} must be ascending layers of {self.depth}")
        return Qwen3Vision(
            num_layers=self.depth,
            intermediate_size=self.intermediate_size,
            positions_per_side=side,
            deepstack_layers=layers,
            streams=1 + len(layers),
            **self.shared_fields(self.hidden_size, self.hidden_act),
        )


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    return read(directory, raw, "qwen3_vl", Config)


def read(directory: Path, raw: dict[str, Any], family: str, text_struct: type[TextJson]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    spec = qwen2_vl.read(
        directory, raw, family, text_struct, lambda vision, size: convert(vision, VisionJson).spec(size)
    )
    assert spec.vision is not None
    if spec.vision.streams > spec.text.num_layers:
        raise StartupError("deepstack_visual_indexes names as many layers as the text model has, or more")
    return spec
