"""config.json of a text model as a typed struct, which each family refines (``families/``).

Defaults for missing keys are those of the config classes in transformers 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.config.json_config import check_activation
from mmserve.checkpoint.config.rope_config import RopeJson, check_rope
from mmserve.checkpoint.spec import LayerSpec, Rope, TextSpec
from mmserve.runtime.errors import StartupError

TokenIds = int | list[int] | None


class GenerationJson(msgspec.Struct, kw_only=True):
    bos_token_id: int | None = None
    eos_token_id: TokenIds = None


class TextJson(msgspec.Struct, kw_only=True):
    """What the families have in common. A family overrides defaults, ``layers`` and ``text_spec``."""

    default_theta: ClassVar[float] = 10_000.0
    partial_rotation: ClassVar[bool] = False
    """The family may turn a part of each head only."""

    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: float | None = None
    rope_scaling: RopeJson | None = None
    rope_parameters: RopeJson | None = None
    partial_rotary_factor: float = 1.0
    original_max_position_embeddings: int | None = None
    bos_token_id: int | None = None
    eos_token_id: TokenIds = None
    dtype: str | None = None
    torch_dtype: str | None = None

    def layers(self) -> Sequence[LayerSpec]:
        return [LayerSpec(rope=self.rope())] * self.num_hidden_layers

    def text_spec(self) -> TextSpec:
        """Raises StartupError for what is not supported. ``tie_embeddings`` is as the config says."""
        check_activation(self.hidden_act)
        return TextSpec(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            layers=tuple(self.layers()),
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads or self.num_attention_heads,
            head_dim=self.head_size(),
            vocab_size=self.vocab_size,
            max_position=self.max_position(),
            rms_eps=self.rms_norm_eps,
            tie_embeddings=self.tie_word_embeddings,
            activation=self.hidden_act,
        )

    def rope(self) -> Rope:
        """Raises StartupError for a kind that is not supported."""
        rope = self.rope_json().rope(self.rope_theta or self.default_theta, self.max_position_embeddings)
        if self.partial_rotary_factor != 1.0:
            rope = replace(rope, fraction=self.partial_rotary_factor)
        if rope.fraction != 1.0 and not self.partial_rotation:
            raise StartupError("a partial_rotary_factor other than 1 is not supported")
        check_rope(rope, self.head_size())
        return rope

    def rope_json(self) -> RopeJson:
        found = self.rope_scaling or self.rope_parameters or RopeJson()
        original = found.original_max_position_embeddings or self.original_max_position_embeddings
        return replace(found, original_max_position_embeddings=original)

    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def max_position(self) -> int:
        """Yarn's factor counts from the original context, which some files give as their longest."""
        rope = self.rope()
        stretched = int(rope.factor * rope.original_max_position) if rope.kind == "yarn" else 0
        return max(self.max_position_embeddings, stretched)

    def windowed(self, window: int | None, is_sliding: Sequence[bool]) -> list[LayerSpec]:
        """Layers of which those that slide have this window, unless the whole context fits into it."""
        if window is not None and window < 1:
            raise StartupError(f"sliding_window {window} is not supported; it must be at least 1")
        if window is None or window >= self.max_position():
            window = None
        if len(is_sliding) != self.num_hidden_layers:
            raise StartupError(f"layer_types names {len(is_sliding)} layers of {self.num_hidden_layers}")
        return [LayerSpec(rope=self.rope(), window=window if sliding else None) for sliding in is_sliding]


def sliding_types(layer_types: Sequence[str]) -> list[bool]:
    """For each entry of ``layer_types``, if it slides. Other kinds are refused later (``layer_states``)."""
    return [kind == "sliding_attention" for kind in layer_types]
