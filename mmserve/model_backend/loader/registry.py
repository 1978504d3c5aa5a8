"""Family name (``ModelSpec.family``) -> family. A family's module is imported on first use."""

from __future__ import annotations

from importlib import import_module

from mmserve.model_backend.loader.family import Family

_PACKAGE = "mmserve.model_backend.loader.families"
_MODULES = {"llama": "llama", "llava": "llava"}


def family_of(name: str) -> Family:
    family = import_module(f"{_PACKAGE}.{_MODULES[name]}").FAMILY
    assert isinstance(family, Family)
    return family
