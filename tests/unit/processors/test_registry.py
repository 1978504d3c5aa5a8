"""Every family with pictures has an image processor."""

from __future__ import annotations

from importlib import import_module

import pytest

from mmserve.checkpoint.vision_families import FAMILIES


@pytest.mark.parametrize("name", FAMILIES)
def test_each_family_with_pictures_has_a_module(name: str) -> None:
    module = FAMILIES[name].processor or name
    assert callable(import_module(f"mmserve.processors.families.{module}").processor)
