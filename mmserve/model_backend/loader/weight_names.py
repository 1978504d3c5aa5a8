"""Tensor names of supported checkpoints -> the names used here: text.*, vision.*, projector.*. Data only."""

from __future__ import annotations

_PREFIXES = (
    # transformers 5 LLaVA
    ("model.language_model.", "text."),
    ("model.vision_tower.vision_model.", "vision."),
    ("model.vision_tower.", "vision."),
    ("model.multi_modal_projector.", "projector."),
    # LLaVA-1.5 as published
    ("language_model.model.", "text."),
    ("language_model.lm_head.", "text.lm_head."),
    ("vision_tower.vision_model.", "vision."),
    ("vision_tower.", "vision."),
    ("multi_modal_projector.", "projector."),
    # plain Llama; its "model." is a prefix of names above, so it comes last
    ("model.", "text."),
    ("lm_head.", "text.lm_head."),
)
_BUFFERS = (".rotary_emb.inv_freq", ".position_ids")
"""Constants that old checkpoints store although they follow from the config."""


def canonical_name(stored: str) -> str | None:
    """The name used here, None for a stored constant. An unknown name counts as text, so that loading reports it."""
    if stored.endswith(_BUFFERS):
        return None
    for prefix, replacement in _PREFIXES:
        if stored.startswith(prefix):
            return replacement + stored.removeprefix(prefix)
    return f"text.{stored}"
