"""The vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: patches of any picture, merged by squares into rows."""

from __future__ import annotations

from mmserve.checkpoint.vision.tower import TowerSpec


class Qwen2Vision(TowerSpec, frozen=True, kw_only=True, tag="qwen2_vl"):
    """Pictures of any size, in patches of ``temporal_patch_size`` frames."""

    temporal_patch_size: int
    merge_size: int
    """Side, in patches, of the square that becomes one row."""
    rope_theta: float

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def patch_nums(self) -> int:
        """Numbers in a patch: channels, frames, rows and columns of pixels."""
        return 3 * self.temporal_patch_size * self.patch_size**2


class Qwen25Vision(Qwen2Vision, frozen=True, kw_only=True, tag="qwen2_5_vl"):
    """Most layers attend within windows. MLPs are gated."""

    mlp_bias: bool = True
    window_size: int
    """Side of a window in pixels."""
    full_attention_layers: tuple[int, ...]

    @property
    def window_squares(self) -> int:
        """Side of a window in merged squares."""
        return self.window_size // self.merge_size // self.patch_size


class Qwen3Vision(Qwen2Vision, frozen=True, kw_only=True, tag="qwen3_vl"):
    """Learned positions, and the outputs of some layers in further streams of each row (DeepStack)."""

    positions_per_side: int
    """Of the square of learned positions, which is resampled to a picture's patches."""
    deepstack_layers: tuple[int, ...]
    """Layers whose output becomes a stream, ascending."""
