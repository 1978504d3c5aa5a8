"""LLaVA-1.5 (Liu et al. 2023): a CLIP tower and a two-layer projector before any text family here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from mmserve.checkpoint.config.json_config import check_activation, convert
from mmserve.checkpoint.config.multimodal import MultimodalJson
from mmserve.checkpoint.families.vision import pixtral
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.clip import ClipJson, ClipVision
from mmserve.runtime.errors import StartupError

V = TypeVar("V", bound=ClipVision)
_DEFAULT_VISION = ClipJson(
    hidden_size=1024,
    intermediate_size=4096,
    num_hidden_layers=24,
    num_attention_heads=16,
    image_size=336,
    patch_size=14,
)
"""LlavaConfig's default for a missing ``vision_config``."""


class LlavaJson(MultimodalJson, kw_only=True):
    vision_config: ClipJson | None = None
    projector_hidden_act: str = "gelu"
    vision_feature_select_strategy: str = "default"
    vision_feature_layer: int | list[int] = -2
    multimodal_projector_bias: bool = True
    tie_word_embeddings: bool = False

    def vision_spec(self, struct: type[V]) -> V:
        """Raises StartupError for what is not supported."""
        strategy, vision = self.vision_feature_select_strategy, self.vision_config or _DEFAULT_VISION
        if not isinstance(self.vision_feature_layer, int) or strategy not in ("default", "full"):
            raise StartupError("only one vision_feature_layer, and strategy 'default' or 'full', are supported")
        check_activation(self.projector_hidden_act)
        spec = struct(
            feature_layer=self.vision_feature_layer,
            select_strategy=cast(Literal["default", "full"], strategy),
            projector_activation=self.projector_hidden_act,
            projector_bias=self.multimodal_projector_bias,
            **vision.fields(),
        )
        if not 0 <= spec.num_layers_needed <= spec.num_layers:
            raise StartupError(f"vision_feature_layer {spec.feature_layer} is not within {spec.num_layers} layers")
        return spec


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    if (raw.get("vision_config") or {}).get("model_type") == "pixtral":
        return pixtral.model(directory, raw)
    config = convert(raw, LlavaJson)
    return config.model_spec(directory, "llava", config.text(), config.vision_spec(ClipVision))
