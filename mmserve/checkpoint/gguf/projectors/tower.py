"""The key-values of a projector's file that describe its tower."""

from __future__ import annotations

from math import prod
from typing import Any

from mmserve.checkpoint.gguf.reader import GgufHeader
from mmserve.checkpoint.gguf.tensor_types import QUANTIZED
from mmserve.runtime.errors import StartupError

_MLP = "v.blk.0.ffn_up.weight"
_PANEL = 16
"""Outputs that kernels compute together."""


class Tower:
    """Its methods raise StartupError for what is missing or of another type."""

    def __init__(self, header: GgufHeader) -> None:
        self._metadata, self.tensors = header

    def get(self, name: str, kind: type, default: Any = None) -> Any:
        """``name``: behind ``clip.vision.``"""
        found = self._metadata.get(f"clip.vision.{name}", default)
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            raise StartupError(f"clip.vision.{name} {found!r} is no {kind.__name__}")
        return found

    def number(self, name: str, default: int | None = None) -> int:
        found: int = self.get(name, int, default)
        if found < 1:
            raise StartupError(f"clip.vision.{name} {found} is not supported")
        return found

    def of_whole(self, name: str, default: Any = None) -> Any:
        """``name``: behind ``clip.``"""
        return self._metadata.get(f"clip.{name}", default)

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.tensors:
            raise StartupError(f"tensor {name} is missing")
        return self.tensors[name].shape

    @property
    def stored_inner_size(self) -> int:
        """Of the MLPs, by their tensors: some converters wrote another number (Qwen2-VL)."""
        return prod(self.shape(_MLP)) // self.number("embedding_length")

    @property
    def inner_size(self) -> int:
        """Matrices in blocks need whole panels of outputs, so that MLPs get some of zeros (Qwen2.5-VL: 3420)."""
        missing = -self.stored_inner_size % _PANEL if self.tensors[_MLP].kind.name in QUANTIZED else 0
        return self.stored_inner_size + missing

    @property
    def activation(self) -> str:
        """Where the family has no choice of its own."""
        return "gelu" if self.of_whole("use_gelu") else "silu" if self.of_whole("use_silu") else "quick_gelu"

    def sizes(self) -> dict[str, Any]:
        """Fields of most ``vision_config``."""
        return {
            "hidden_size": self.number("embedding_length"),
            "intermediate_size": self.inner_size,
            "num_hidden_layers": self.number("block_count"),
            "num_attention_heads": self.number("attention.head_count"),
            "image_size": self.number("image_size"),
            "patch_size": self.number("patch_size"),
            "layer_norm_eps": self.get("attention.layer_norm_epsilon", float),
        }

    def colours(self) -> dict[str, list[float]]:
        """Fields of preprocessor_config.json."""
        return {"image_mean": self._three("image_mean"), "image_std": self._three("image_std")}

    def side(self) -> dict[str, int]:
        """``size`` of preprocessor_config.json: the square that the tower takes."""
        return {"height": self.number("image_size"), "width": self.number("image_size")}

    def _three(self, name: str) -> list[float]:
        found = self._metadata.get(f"clip.vision.{name}")
        if not isinstance(found, list) or [isinstance(each, int | float) for each in found] != [True] * 3:
            raise StartupError(f"clip.vision.{name} {found!r} is not three numbers")
        return [float(each) for each in found]
