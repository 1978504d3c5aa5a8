"""What each architecture with code of mmserve's own is, in words, for ``mmserve models``."""

from __future__ import annotations

from typing import NamedTuple

from mmserve.checkpoint.registry import ARCHITECTURES
from mmserve.checkpoint.vision_families import FAMILIES


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
}


def entries() -> list[Entry]:
    """In the order of the registry. An architecture without words has none."""
    words = dict(_TEXTS)
    for family in FAMILIES.values():
        words.update(family.architectures)
    return [Entry(architecture, *words.get(architecture, ("", ""))) for architecture in ARCHITECTURES]
