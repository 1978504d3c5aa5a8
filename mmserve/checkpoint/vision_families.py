"""The families of models that see pictures: one entry says what each of them is, beside its modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

Prefixes = Sequence[tuple[str, str]]
"""(prefix of a stored name, prefix used here), first match wins. Used here: text., vision., projector."""

TEXT_NAMES: Prefixes = (("model.", "text."), ("lm_head.", "text.lm_head."))
_LLAVA: Prefixes = (
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
    *TEXT_NAMES,
)
_GEMMA3: Prefixes = (
    # A matrix without a layer of its own.
    ("model.multi_modal_projector.mm_input_projection_weight", "projector.mm_input_projection.weight"),
    ("multi_modal_projector.mm_input_projection_weight", "projector.mm_input_projection.weight"),
    *_LLAVA,
)
_QWEN_VL: Prefixes = (
    # Of Qwen3-VL on the hub, and of all in transformers 5.
    ("model.visual.", "vision."),
    ("model.language_model.", "text."),
    # Of Qwen2-VL and Qwen2.5-VL on the hub.
    ("visual.", "vision."),
    *TEXT_NAMES,
)
_IDEFICS3: Prefixes = (
    ("model.text_model.", "text."),
    ("model.vision_model.", "vision."),
    ("model.connector.modality_projection.", "projector."),
    *TEXT_NAMES,
)
_INTERNVL_CHAT: Prefixes = (
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
_PADDLEOCR_VL: Prefixes = (
    # As transformers 5 has it in memory.
    ("model.language_model.", "text."),
    ("model.visual.vision_model.", "vision."),
    ("model.projector.", "projector."),
    # As it was published.
    ("visual.vision_model.", "vision."),
    ("mlp_AR.", "projector."),
    *TEXT_NAMES,
)


class VisionFamily(NamedTuple):
    """``architectures``: a name in config.json -> (models that have it, what it adds to Llama), for ``mmserve models``.

    Its modules have the family's name, in ``checkpoint.families.vision`` always, elsewhere unless one is named here.
    """

    architectures: Mapping[str, tuple[str, str]]
    names: Prefixes
    """Under which checkpoints store its tensors, on the hub and in transformers 5."""
    processor: str = ""
    """Its module in ``processors.families``."""
    loader: str = ""
    """Its module in ``model_backend.loader.families``."""
    tower_names: Prefixes = ()
    """Parts of names in the tower's layers, and what each is here; the first that a name has is replaced."""


FAMILIES = {
    "idefics3": VisionFamily(
        {
            "Idefics3ForConditionalGeneration": ("Idefics3", "a SigLIP tower; tiles, with text between them"),
            "SmolVLMForConditionalGeneration": ("SmolVLM, SmolVLM2", "as Idefics3"),
        },
        _IDEFICS3,
    ),
    "llava": VisionFamily(
        {"LlavaForConditionalGeneration": ("LLaVA-1.5", "a CLIP tower before any of the above as `text_config`")},
        _LLAVA,
    ),
    # Reached from "llava" by its vision_config.
    "pixtral": VisionFamily({}, _LLAVA, processor="mistral3", loader="mistral3"),
    "qwen2_vl": VisionFamily(
        {
            "Qwen2VLForConditionalGeneration": (
                "Qwen2-VL",
                "a tower for pictures of any size; positions with three axes",
            )
        },
        _QWEN_VL,
        processor="qwen_vl",
    ),
    "qwen2_5_vl": VisionFamily(
        {"Qwen2_5_VLForConditionalGeneration": ("Qwen2.5-VL", "as Qwen2-VL, with windows in the tower")},
        _QWEN_VL,
        processor="qwen_vl",
    ),
    "qwen3_vl": VisionFamily(
        {
            "Qwen3VLForConditionalGeneration": (
                "Qwen3-VL, dense",
                "as Qwen2-VL before Qwen3, with rows added after the first layers (DeepStack)",
            )
        },
        _QWEN_VL,
        processor="qwen_vl",
    ),
    "qwen3_vl_moe": VisionFamily(
        {
            "Qwen3VLMoeForConditionalGeneration": (
                "Qwen3-VL, mixtures of experts",
                "as Qwen3-VL before Qwen3-MoE",
            )
        },
        _QWEN_VL,
        processor="qwen_vl",
        loader="qwen3_vl",
    ),
    "llava_next": VisionFamily(
        {"LlavaNextForConditionalGeneration": ("LLaVA-NeXT (LLaVA-1.6)", "as LLaVA-1.5, with tiles")},
        _LLAVA,
    ),
    "llava_onevision": VisionFamily(
        {
            "LlavaOnevisionForConditionalGeneration": (
                "LLaVA-OneVision",
                "a SigLIP tower; tiles of a single picture",
            )
        },
        _LLAVA,
    ),
    "internvl": VisionFamily(
        {"InternVLForConditionalGeneration": ("InternVL3, InternVL3.5", "an InternViT tower, tiles")},
        _LLAVA,
    ),
    "internvl_chat": VisionFamily(
        {"InternVLChatModel": ("InternVL in its own format", "an InternViT tower, tiles")},
        _INTERNVL_CHAT,
        processor="internvl",
        loader="internvl",
        tower_names=(
            (".attn.proj.", ".attention.projection_layer."),
            (".attn.", ".attention."),
            (".norm1.", ".layernorm_before."),
            (".norm2.", ".layernorm_after."),
            (".ls1", ".lambda_1"),
            (".ls2", ".lambda_2"),
        ),
    ),
    "mistral3": VisionFamily(
        {
            "Mistral3ForConditionalGeneration": (
                "Mistral-Small-3.1 and 3.2, Devstral, Magistral",
                "a Pixtral tower; text between the rows of a picture",
            )
        },
        _LLAVA,
    ),
    "gemma3": VisionFamily(
        {
            "Gemma3ForConditionalGeneration": (
                "Gemma 3: 4B, 12B, 27B",
                "a SigLIP tower; a picture's tokens attend to all of it",
            )
        },
        _GEMMA3,
    ),
    "paddleocr_vl": VisionFamily(
        {
            "PaddleOCRVLForConditionalGeneration": (
                "PaddleOCR-VL",
                "a SigLIP tower with rotation; positions with three axes",
            )
        },
        _PADDLEOCR_VL,
    ),
}
"""By name, which is ``ModelSpec.family`` and, but for Pixtral, the ``model_type`` of config.json."""
