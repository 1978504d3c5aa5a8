"""What each architecture with code of mmserve's own is, in words, for ``mmserve models``."""

from __future__ import annotations

from typing import NamedTuple

from mmserve.checkpoint.registry import ARCHITECTURES


class Entry(NamedTuple):
    """One row of the table."""

    architecture: str
    models: str
    adds: str
    """What it adds to Llama."""


_TEXTS = {
    "LlamaForCausalLM": (
        "Llama 1 to 3.3 and what shares the architecture",
        "biases, tied head",
    ),
    "MistralForCausalLM": (
        "Mistral 7B, Nemo, Small (text)",
        "a window in all layers (version 0.1)",
    ),
    "MinistralForCausalLM": (
        "Ministral 8B of 2024",
        "a window in the layers that `layer_types` names",
    ),
    "Ministral3ForCausalLM": (
        "Ministral 3 (text)",
        "queries far from the beginning are multiplied with a factor",
    ),
    "Qwen2ForCausalLM": (
        "Qwen2, Qwen2.5",
        "a bias on Q, K and V; a window in the last layers if `use_sliding_window`",
    ),
    "Qwen3ForCausalLM": (
        "Qwen3, dense",
        "norms of query and key heads",
    ),
    "Qwen3MoeForCausalLM": (
        "Qwen3, mixtures of experts",
        "as Qwen3, with experts in place of the MLP in all or some layers",
    ),
    "SmolLM3ForCausalLM": (
        "SmolLM3",
        "layers without rotation",
    ),
    "Gemma3ForCausalLM": (
        "Gemma 3, text",
        "four norms a layer, with 1 added to their weights; windows, and another rope in the layers that have"
        " them; scaled embeddings; its own attention scale; `gelu_pytorch_tanh`",
    ),
    "Phi3ForCausalLM": (
        "Phi-3, Phi-3.5-mini, Phi-4, Phi-4-mini",
        "projections stored fused; a part of each head turns; `longrope`",
    ),
    "Ernie4_5ForCausalLM": (
        "ERNIE 4.5, dense",
        "pairs of adjacent numbers turn; biases",
    ),
    "LlavaForConditionalGeneration": (
        "LLaVA-1.5",
        "a CLIP tower before any of the above as `text_config`",
    ),
    "Qwen2VLForConditionalGeneration": (
        "Qwen2-VL",
        "a tower for pictures of any size; positions with three axes",
    ),
    "Qwen2_5_VLForConditionalGeneration": (
        "Qwen2.5-VL",
        "as Qwen2-VL, with windows in the tower",
    ),
    "Qwen3VLForConditionalGeneration": (
        "Qwen3-VL, dense",
        "as Qwen2-VL before Qwen3, with rows added after the first layers (DeepStack)",
    ),
    "Qwen3VLMoeForConditionalGeneration": (
        "Qwen3-VL, mixtures of experts",
        "as Qwen3-VL before Qwen3-MoE",
    ),
    "LlavaNextForConditionalGeneration": (
        "LLaVA-NeXT (LLaVA-1.6)",
        "as LLaVA-1.5, with tiles",
    ),
    "LlavaOnevisionForConditionalGeneration": (
        "LLaVA-OneVision",
        "a SigLIP tower; tiles of a single picture",
    ),
    "InternVLForConditionalGeneration": (
        "InternVL3, InternVL3.5",
        "an InternViT tower, tiles",
    ),
    "InternVLChatModel": (
        "InternVL in its own format",
        "an InternViT tower, tiles",
    ),
    "Mistral3ForConditionalGeneration": (
        "Mistral-Small-3.1 and 3.2, Devstral, Magistral",
        "a Pixtral tower; text between the rows of a picture",
    ),
    "Idefics3ForConditionalGeneration": (
        "Idefics3",
        "a SigLIP tower; tiles, with text between them",
    ),
    "SmolVLMForConditionalGeneration": (
        "SmolVLM, SmolVLM2",
        "as Idefics3",
    ),
    "Gemma3ForConditionalGeneration": (
        "Gemma 3: 4B, 12B, 27B",
        "a SigLIP tower; a picture's tokens attend to all of it",
    ),
    "PaddleOCRVLForConditionalGeneration": (
        "PaddleOCR-VL",
        "a SigLIP tower with rotation; positions with three axes",
    ),
}


def entries() -> list[Entry]:
    """In the order of the registry. An architecture without words here has none."""
    return [Entry(architecture, *_TEXTS.get(architecture, ("", ""))) for architecture in ARCHITECTURES]
