"""LLaVA-1.5 (Liu et al. 2023): a CLIP tower and a two-layer projector before any text family here."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from mmserve.checkpoint.added_tokens import added_tokens
from mmserve.checkpoint.registry import text_config
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.stop_tokens import ends_of_text
from mmserve.checkpoint.text_config import check_activation, convert
from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.runtime.errors import StartupError

_IMAGE_TOKEN = 32000


class ClipVisionJson(msgspec.Struct, kw_only=True):
    model_type: str = "clip_vision_model"
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    image_size: int = 224
    patch_size: int = 32
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5


_DEFAULT_VISION = ClipVisionJson(
    hidden_size=1024,
    intermediate_size=4096,
    num_hidden_layers=24,
    num_attention_heads=16,
    image_size=336,
    patch_size=14,
)
"""LlavaConfig's default for a missing ``vision_config``."""


class LlavaJson(msgspec.Struct, kw_only=True):
    """``text_config`` stays raw, because its ``model_type`` decides its struct."""

    text_config: dict[str, object] | None = None
    vision_config: ClipVisionJson | None = None
    image_token_index: int | None = None
    image_token_id: int | None = None
    projector_hidden_act: str = "gelu"
    vision_feature_select_strategy: str = "default"
    vision_feature_layer: int | list[int] = -2
    multimodal_projector_bias: bool = True
    tie_word_embeddings: bool = False
    dtype: str | None = None
    torch_dtype: str | None = None


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    config = convert(raw, LlavaJson)
    text = text_config(config.text_config or {}, default="llama")
    token = next((t for t in (config.image_token_index, config.image_token_id) if t is not None), _IMAGE_TOKEN)
    dtypes = (config.dtype, config.torch_dtype, text.dtype, text.torch_dtype)
    bos_id, eos_ids = ends_of_text(directory, text)
    spec = text.text_spec()
    return ModelSpec(
        family="llava",
        path=str(directory),
        text=msgspec.structs.replace(spec, tie_embeddings=spec.tie_embeddings or config.tie_word_embeddings),
        vision=_vision_spec(config, config.vision_config or _DEFAULT_VISION),
        image_token_id=token,
        image_token=added_tokens(directory).get(token, "<image>"),
        eos_token_ids=eos_ids,
        bos_token_id=bos_id,
        checkpoint_dtype=next((dtype for dtype in dtypes if dtype), "float32"),
    )


def _vision_spec(config: LlavaJson, vision: ClipVisionJson) -> ClipVision:
    strategy = config.vision_feature_select_strategy
    if vision.model_type not in ("clip_vision_model", "clip") or vision.num_channels != 3:
        raise StartupError(f"vision tower {vision.model_type!r} is not supported; supported is CLIP's with 3 channels")
    if not isinstance(config.vision_feature_layer, int) or strategy not in ("default", "full"):
        raise StartupError("only one vision_feature_layer, and strategy 'default' or 'full', are supported")
    for activation in (vision.hidden_act, config.projector_hidden_act):
        check_activation(activation)
    spec = ClipVision(
        image_size=vision.image_size,
        patch_size=vision.patch_size,
        hidden_size=vision.hidden_size,
        intermediate_size=vision.intermediate_size,
        num_layers=vision.num_hidden_layers,
        num_heads=vision.num_attention_heads,
        layer_norm_eps=vision.layer_norm_eps,
        activation=vision.hidden_act,
        feature_layer=config.vision_feature_layer,
        select_strategy=cast(Literal["default", "full"], strategy),
        projector_activation=config.projector_hidden_act,
        projector_bias=config.multimodal_projector_bias,
    )
    if not 0 <= spec.num_layers_needed <= spec.num_layers:
        raise StartupError(f"vision_feature_layer {spec.feature_layer} is not within {spec.num_layers} layers")
    return spec
