"""SmolLM3: Llama's layers, of which every fourth rotates nothing."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mmserve.checkpoint.config.text_config import TokenIds, sliding_types
from mmserve.checkpoint.families.text import llama
from mmserve.checkpoint.spec import LayerSpec
from mmserve.runtime.errors import StartupError


class Config(llama.Config, kw_only=True):
    default_theta: ClassVar[float] = 2_000_000.0

    vocab_size: int = 128256
    hidden_size: int = 2048
    num_hidden_layers: int = 36
    num_attention_heads: int = 16
    num_key_value_heads: int | None = 4
    max_position_embeddings: int = 32768
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 128000
    eos_token_id: TokenIds = 128001
    use_sliding_window: bool = False
    sliding_window: int | None = None
    no_rope_layers: list[int] | None = None
    """One number a layer: 0 if it rotates nothing."""
    no_rope_layer_interval: int = 4
    layer_types: list[str] | None = None

    def layers(self) -> list[LayerSpec]:
        rotates = [(index + 1) % self.no_rope_layer_interval != 0 for index in range(self.num_hidden_layers)]
        if self.no_rope_layers is not None:
            rotates = [bool(number) for number in self.no_rope_layers[: self.num_hidden_layers]]
        if len(rotates) != self.num_hidden_layers:
            raise StartupError(f"no_rope_layers names {len(rotates)} layers of {self.num_hidden_layers}")
        sliding = [not rotate for rotate in rotates] if self.layer_types is None else sliding_types(self.layer_types)
        layers = self.windowed(self.sliding_window if self.use_sliding_window else None, sliding)
        pairs = zip(layers, rotates, strict=True)
        return [layer if rotate else replace(layer, rope=None) for layer, rotate in pairs]
