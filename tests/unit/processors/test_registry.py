"""Every family with pictures has an image processor."""

from __future__ import annotations

from importlib import import_module

from mmserve.checkpoint.registry import VISION
from mmserve.processors.registry import _MODULES


def test_each_vision_family_of_the_checkpoint_registry_has_a_module() -> None:
    assert set(VISION.values()) <= set(_MODULES)
    for module in set(_MODULES.values()):
        assert callable(import_module(f"mmserve.processors.families.{module}").processor)
