"""Ministral 8B of 2024: Mistral in which ``layer_types`` says which layers have a window."""

from __future__ import annotations

from mmserve.checkpoint.config.text_config import sliding_types
from mmserve.checkpoint.families.text import mistral
from mmserve.checkpoint.spec import LayerSpec


class Config(mistral.Config, kw_only=True):
    layer_types: list[str] | None = None

    def layers(self) -> list[LayerSpec]:
        sliding = None if self.layer_types is None else sliding_types(self.layer_types)
        return super().layers() if sliding is None else self.windowed(self.sliding_window, sliding)
