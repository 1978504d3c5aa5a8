"""InternViT (Chen et al. 2023) with InternVL's projector."""

from __future__ import annotations

import msgspec

from mmserve.checkpoint.config.json_config import check_activation
from mmserve.checkpoint.vision.tower import TowerSpec, side_of
from mmserve.runtime.errors import StartupError


class InternVit(TowerSpec, frozen=True, kw_only=True, tag="internvit"):
    """Square tiles in square patches behind a class token, without a last norm."""

    image_size: int
    """Pixels of a tile's side."""
    rms_norm: bool
    """RMSNorm instead of LayerNorm."""
    qkv_bias: bool
    qk_norm_eps: float | None
    """RMSNorm of queries and of keys, over all heads at once; None: no such norm."""
    fused_qkv: bool
    """The checkpoint stores the projections of queries, keys and values as one matrix."""
    merge_size: int
    """Features of ``merge_size`` x ``merge_size`` neighbours become one row."""
    projector_activation: str

    @property
    def patches_per_side(self) -> int:
        return self.image_size // self.patch_size

    @property
    def rows_per_tile(self) -> int:
        return (self.patches_per_side // self.merge_size) ** 2


class InternVitJson(msgspec.Struct, kw_only=True):
    """``vision_config`` with the names and defaults of transformers' InternVLVisionConfig."""

    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    attention_bias: bool = False
    use_qk_norm: bool = False
    hidden_act: str = "gelu"
    norm_type: str = "layer_norm"
    layer_norm_eps: float = 1e-6
    image_size: int | list[int] = 448
    patch_size: int | list[int] = 14
    num_channels: int = 3
    use_mask_token: bool = False
    use_absolute_position_embeddings: bool = True
    use_mean_pooling: bool = True

    def spec(
        self, *, downsample_ratio: float, qk_norm_eps: float, fused_qkv: bool, projector_activation: str
    ) -> InternVit:
        """Raises StartupError for what is not supported."""
        for activation in (self.hidden_act, projector_activation):
            check_activation(activation)
        if self.num_channels != 3 or self.norm_type not in ("layer_norm", "rms_norm"):
            raise StartupError("vision_config: supported are 3 channels, and norm_type 'layer_norm' or 'rms_norm'")
        if self.use_mask_token or not self.use_absolute_position_embeddings or not self.use_mean_pooling:
            raise StartupError("vision_config: a mask token, no positions, or use_mean_pooling false is not supported")
        merge_size = int(1 / downsample_ratio)
        spec = InternVit(
            image_size=side_of(self.image_size, "image_size"),
            patch_size=side_of(self.patch_size, "patch_size"),
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_layers=self.num_hidden_layers,
            num_heads=self.num_attention_heads,
            activation=self.hidden_act,
            layer_norm_eps=self.layer_norm_eps,
            patches_per_row=merge_size**2,
            rms_norm=self.norm_type == "rms_norm",
            qkv_bias=self.attention_bias,
            qk_norm_eps=qk_norm_eps if self.use_qk_norm else None,
            fused_qkv=fused_qkv,
            merge_size=merge_size,
            projector_activation=projector_activation,
        )
        if spec.hidden_size % spec.num_heads or spec.patches_per_side % merge_size:
            raise StartupError("vision_config: heads must divide the hidden size, and downsample_ratio the patches")
        return spec
