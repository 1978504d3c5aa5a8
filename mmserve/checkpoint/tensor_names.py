"""The names of tensors in checkpoints, which differ between families, as the one name that each tensor has here."""

from __future__ import annotations

from mmserve.checkpoint.vision_families import FAMILIES, TEXT_NAMES, Prefixes

_CONSTANTS = (".rotary_emb.inv_freq", ".position_ids")
"""Suffixes of constants that old checkpoints store although they follow from the config."""


def canonical_name(family: str, stored: str) -> str | None:
    """The name used here, None for a stored constant. ``family``: of ``checkpoint.registry``.

    An unknown name is returned as a text tensor, so that loading reports it.
    """
    if stored.endswith(_CONSTANTS):
        return None
    known = FAMILIES.get(family)
    for prefix, replacement in TEXT_NAMES if known is None else known.names:
        if stored.startswith(prefix):
            name = replacement + stored.removeprefix(prefix)
            return name if known is None else _with_parts(name, known.tower_names)
    return f"text.{stored}"


def _with_parts(name: str, parts: Prefixes) -> str:
    if name.startswith("vision.encoder."):
        for part, replacement in parts:
            if part in name:
                return name.replace(part, replacement)
    return name
