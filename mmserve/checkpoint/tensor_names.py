"""Under which names the checkpoints of each family store their tensors, on the hub and in transformers 5."""

from __future__ import annotations

from collections.abc import Sequence

_Prefixes = Sequence[tuple[str, str]]
"""(prefix of a stored name, prefix used here), first match wins. Used here: text., vision., projector."""

_TEXT: _Prefixes = (("model.", "text."), ("lm_head.", "text.lm_head."))
_LLAVA: _Prefixes = (
    # As transformers 5 saves it.
    ("model.language_model.", "text."),
    ("model.vision_tower.vision_model.", "vision."),
    ("model.vision_tower.", "vision."),
    ("model.multi_modal_projector.", "projector."),
    # As LLaVA-1.5 was published.
    ("language_model.model.", "text."),
    ("language_model.lm_head.", "text.lm_head."),
    ("vision_tower.vision_model.", "vision."),
    ("vision_tower.", "vision."),
    ("multi_modal_projector.", "projector."),
    # The row that ends a line of LLaVA-NeXT and LLaVA-OneVision.
    ("model.image_newline", "projector.image_newline"),
    ("image_newline", "projector.image_newline"),
    # Last, because its "model." is a prefix of names above.
    *_TEXT,
)
_QWEN_VL: _Prefixes = (
    # Of Qwen3-VL on the hub, and of all in transformers 5.
    ("model.visual.", "vision."),
    ("model.language_model.", "text."),
    # Of Qwen2-VL and Qwen2.5-VL on the hub.
    ("visual.", "vision."),
    *_TEXT,
)
_IDEFICS3: _Prefixes = (
    ("model.text_model.", "text."),
    ("model.vision_model.", "vision."),
    ("model.connector.modality_projection.", "projector."),
    ("lm_head.", "text.lm_head."),
)
_INTERNVL_CHAT: _Prefixes = (
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
_PADDLEOCR_VL: _Prefixes = (
    # As transformers 5 has it in memory.
    ("model.language_model.", "text."),
    ("model.visual.vision_model.", "vision."),
    ("model.projector.", "projector."),
    # As it was published.
    ("visual.vision_model.", "vision."),
    ("mlp_AR.", "projector."),
    *_TEXT,
)
_PREFIXES = {
    "idefics3": _IDEFICS3,
    "llava": _LLAVA,
    "llava_next": _LLAVA,
    "llava_onevision": _LLAVA,
    "qwen2_vl": _QWEN_VL,
    "qwen2_5_vl": _QWEN_VL,
    "qwen3_vl": _QWEN_VL,
    "qwen3_vl_moe": _QWEN_VL,
    "internvl": _LLAVA,
    "internvl_chat": _INTERNVL_CHAT,
    "mistral3": _LLAVA,
    "pixtral": _LLAVA,
    "gemma3": _LLAVA,
    "paddleocr_vl": _PADDLEOCR_VL,
}
_PARTS = {
    "internvl_chat": (
        (".attn.proj.", ".attention.projection_layer."),
        (".attn.", ".attention."),
        (".norm1.", ".layernorm_before."),
        (".norm2.", ".layernorm_after."),
        (".ls1", ".lambda_1"),
        (".ls2", ".lambda_2"),
    )
}
"""Parts of names in the tower's layers; the first that a name holds is replaced."""
_CONSTANTS = (".rotary_emb.inv_freq", ".position_ids")
"""Suffixes of constants that old checkpoints store although they follow from the config."""


def canonical_name(family: str, stored: str) -> str | None:
    """The name used here, None for a stored constant. ``family``: of ``checkpoint.registry``.

    An unknown name is returned as a text tensor, so that loading reports it.
    """
    if stored.endswith(_CONSTANTS):
        return None
    for prefix, replacement in _PREFIXES.get(family, _TEXT):
        if stored.startswith(prefix):
            return _with_parts(family, replacement + stored.removeprefix(prefix))
    return f"text.{stored}"


def _with_parts(family: str, name: str) -> str:
    if name.startswith("vision.encoder."):
        for part, replacement in _PARTS.get(family, ()):
            if part in name:
                return name.replace(part, replacement)
    return name
