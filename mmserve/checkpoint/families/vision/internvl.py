"""InternVL3 and 3.5 (Zhu et al. 2025) in the format of transformers: InternViT before a Qwen2, Qwen3 or Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.config.multimodal import MultimodalJson
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.internvit import InternVitJson
from mmserve.runtime.errors import StartupError

_QK_NORM_EPS = 1e-6
"""config.json does not give it."""


class InternVlJson(MultimodalJson, kw_only=True):
    default_text: ClassVar[str] = "qwen2"
    default_token_id: ClassVar[int] = 151667
    default_token: ClassVar[str] = "<IMG_CONTEXT>"

    vision_config: InternVitJson = msgspec.field(default_factory=InternVitJson)
    downsample_ratio: float = 0.5
    projector_hidden_act: str = "gelu"
    vision_feature_layer: int | list[int] = -1
    vision_feature_select_strategy: str = "default"


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    config = convert(raw, InternVlJson)
    if config.vision_feature_layer != -1 or config.vision_feature_select_strategy != "default":
        raise StartupError("only vision_feature_layer -1 with strategy 'default' is supported for InternVL")
    vision = config.vision_config.spec(
        downsample_ratio=config.downsample_ratio,
        qk_norm_eps=_QK_NORM_EPS,
        fused_qkv=False,
        projector_activation=config.projector_hidden_act,
    )
    return config.model_spec(directory, "internvl", config.text(), vision)
