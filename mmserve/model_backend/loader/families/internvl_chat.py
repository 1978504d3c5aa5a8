"""InternVL3 and 3.5 in their authors' format, whose tensor names are translated into those of transformers."""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.model_backend.loader.families import internvl, text
from mmserve.model_backend.loader.family import Family

_NAME_PREFIXES = (
    ("language_model.model.", "text."),
    ("language_model.lm_head.", "text.lm_head."),
    ("vision_model.encoder.layers.", "vision.encoder.layer."),
    ("vision_model.embeddings.class_embedding", "vision.embeddings.cls_token"),
    ("vision_model.embeddings.position_embedding", "vision.embeddings.position_embeddings"),
    ("vision_model.embeddings.patch_embedding.", "vision.embeddings.patch_embeddings.projection."),
    ("mlp1.0.", "projector.layer_norm."),
    ("mlp1.1.", "projector.linear_1."),
    ("mlp1.3.", "projector.linear_2."),
)
_LAYER_PARTS = {
    ".attn.proj.": ".attention.projection_layer.",
    ".attn.": ".attention.",
    ".norm1.": ".layernorm_before.",
    ".norm2.": ".layernorm_after.",
    ".ls1": ".lambda_1",
    ".ls2": ".lambda_2",
}
"""Parts of the tower's layers; the first that a name holds is replaced."""


@dataclass(frozen=True)
class NativeFamily(Family):
    """Translates the parts of the tower's layers too."""

    def canonical_name(self, stored: str) -> str | None:
        name = super().canonical_name(stored)
        if name is None or not name.startswith("vision.encoder."):
            return name
        part = next((part for part in _LAYER_PARTS if part in name), "")
        return name.replace(part, _LAYER_PARTS[part]) if part else name


FAMILY = NativeFamily(_NAME_PREFIXES, text.decoder, internvl.tower)
