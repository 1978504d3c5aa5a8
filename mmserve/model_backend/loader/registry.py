"""Family name (``ModelSpec.family``) -> family. A family's module is imported on first use."""

from __future__ import annotations

from importlib import import_module

from mmserve.model_backend.loader.family import Family

_PACKAGE = "mmserve.model_backend.loader.families"
_TEXT = "text"
_OWN_MODULES = {name: name for name in ("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")}
"""Of families that are not text alone."""


def family_of(name: str) -> Family:
    family = import_module(f"{_PACKAGE}.{_OWN_MODULES.get(name, _TEXT)}").FAMILY
    assert isinstance(family, Family)
    return family
