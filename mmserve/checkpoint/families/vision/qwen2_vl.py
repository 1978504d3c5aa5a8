"""Qwen2-VL (Wang et al. 2024): Qwen2 whose positions have three axes, behind a tower for pictures of any size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.config.added_tokens import added_tokens
from mmserve.checkpoint.config.json_config import check_activation, convert
from mmserve.checkpoint.config.stop_tokens import ends_of_text
from mmserve.checkpoint.config.text_config import TextJson, TokenIds
from mmserve.checkpoint.families.text import qwen2
from mmserve.checkpoint.spec import ModelSpec, Rope, VisionSpec
from mmserve.checkpoint.vision.qwen_vl import Qwen2Vision
from mmserve.runtime.errors import StartupError

NORM_EPS = 1e-6
"""Of the tower; config.json does not give it."""


class Config(qwen2.Config, kw_only=True):
    """``text_config``, which the hub's files have at the top."""

    default_theta: ClassVar[float] = 1_000_000.0
    default_sections: ClassVar[tuple[int, ...]] = (16, 24, 24)

    vocab_size: int = 152064
    hidden_size: int = 8192
    intermediate_size: int = 29568
    num_hidden_layers: int = 80
    num_attention_heads: int = 64
    num_key_value_heads: int | None = 8
    rms_norm_eps: float = 1e-5
    max_window_layers: int = 80
    bos_token_id: int | None = 151643
    eos_token_id: TokenIds = 151645

    def rope(self) -> Rope:
        rope = super().rope()
        return rope if rope.sections else replace(rope, sections=self.default_sections)


class VisionRopeJson(msgspec.Struct, kw_only=True):
    rope_theta: float = 10_000.0


class PatchJson(msgspec.Struct, kw_only=True):
    """What ``vision_config`` of all these families has."""

    num_heads: int = 16
    in_channels: int = 3
    in_chans: int | None = None
    patch_size: int = 14
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    rope_parameters: VisionRopeJson | None = None

    def shared_fields(self, hidden_size: int, activation: str) -> dict[str, Any]:
        """Fields of a ``Qwen2Vision``. Raises StartupError for what is not supported."""
        check_activation(activation)
        if (self.in_chans or self.in_channels) != 3 or hidden_size % (4 * self.num_heads):
            raise StartupError("vision_config: supported are 3 channels, and heads of a multiple of 4")
        return {
            "hidden_size": hidden_size,
            "num_heads": self.num_heads,
            "patch_size": self.patch_size,
            "temporal_patch_size": self.temporal_patch_size,
            "merge_size": self.spatial_merge_size,
            "patches_per_row": self.spatial_merge_size**2,
            "activation": activation,
            "layer_norm_eps": NORM_EPS,
            "rope_theta": (self.rope_parameters or VisionRopeJson()).rope_theta,
        }


class VisionJson(PatchJson, kw_only=True):
    depth: int = 32
    embed_dim: int = 1280
    hidden_size: int = 3584
    """Of the language model."""
    hidden_act: str = "quick_gelu"
    mlp_ratio: float = 4

    def spec(self, text_hidden_size: int) -> Qwen2Vision:
        """Raises StartupError for what is not supported."""
        check_width(self.hidden_size, text_hidden_size)
        return Qwen2Vision(
            num_layers=self.depth,
            intermediate_size=int(self.embed_dim * self.mlp_ratio),
            **self.shared_fields(self.embed_dim, self.hidden_act),
        )


class ModelJson(msgspec.Struct, kw_only=True):
    text_config: dict[str, Any] | None = None
    vision_config: dict[str, Any] = {}
    image_token_id: int = 151655
    tie_word_embeddings: bool = False
    dtype: str | None = None
    torch_dtype: str | None = None


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    return read(directory, raw, "qwen2_vl", Config, lambda vision, size: convert(vision, VisionJson).spec(size))


def read(
    directory: Path,
    raw: dict[str, Any],
    family: str,
    text_struct: type[TextJson],
    vision: Callable[[dict[str, Any], int], VisionSpec],
) -> ModelSpec:
    """``vision``: (``vision_config``, the text model's hidden size) -> spec."""
    config = convert(raw, ModelJson)
    text = convert(raw if config.text_config is None else config.text_config, text_struct)
    dtypes = (config.dtype, config.torch_dtype, text.dtype, text.torch_dtype)
    bos_id, eos_ids = ends_of_text(directory, text)
    spec = text.text_spec()
    return ModelSpec(
        family=family,
        path=str(directory),
        text=replace(spec, tie_embeddings=spec.tie_embeddings or config.tie_word_embeddings),
        vision=vision(config.vision_config, spec.hidden_size),
        image_token_id=config.image_token_id,
        image_token=added_tokens(directory).get(config.image_token_id, "<|image_pad|>"),
        eos_token_ids=eos_ids,
        bos_token_id=bos_id,
        checkpoint_dtype=next((dtype for dtype in dtypes if dtype), "float32"),
    )


def check_width(tower: int, text: int) -> None:
    """Raises StartupError unless the tower's rows are as wide as the language model's embeddings."""
    if tower != text:
        raise StartupError(f"the vision tower's rows of {tower} do not fit a text model of hidden size {text}")
