"""The tiny checkpoints of the tests, one for each family of mmserve, and Pixtral's, which is of LLaVA's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from mmserve.checkpoint.registry import TEXT
from mmserve.checkpoint.vision_families import FAMILIES
from tests.fakes.models.checkpoints import make_llava, make_text
from tests.fakes.models.idefics3 import make_idefics3
from tests.fakes.models.qwen_vl import CONFIGS, make_qwen_vl
from tests.fakes.models.vision_checkpoints import make_native_internvl, make_vision

Make = Callable[[Path], Path]
"""Writes a checkpoint into a directory, which it returns."""


def _internvl_chat(directory: Path) -> Path:
    """transformers' checkpoint in its authors' format."""
    source = make_vision(directory.with_name(f"{directory.name}-source"), "internvl")
    return make_native_internvl(directory, source)


def _vision(family: str) -> Make:
    if family in CONFIGS:
        return partial(make_qwen_vl, family=family)
    return partial(make_vision, family=family)


_OTHERS: Mapping[str, Make] = {"llava": make_llava, "idefics3": make_idefics3, "internvl_chat": _internvl_chat}
TINY: Mapping[str, Make] = {family: partial(make_text, family=family) for family in TEXT.values()} | {
    **{family: _OTHERS.get(family) or _vision(family) for family, entry in FAMILIES.items() if entry.architectures},
    "pixtral": partial(make_vision, family="pixtral"),
}
"""By family. Pixtral-12B calls itself LLaVA, and has another tower and other views."""
