"""How the pictures of the shapes are processed: the JSON files that transformers, vLLM and mmserve read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Files = Mapping[str, Mapping[str, Any]]
"""File name -> content."""
TILE, PATCH = 224, 14
"""Of InternVL and SmolVLM, in pixels."""
INTERNVL_ROWS = (TILE // PATCH // 2) ** 2
"""Of a tile."""
GEMMA_SIDE, GEMMA_ROWS = 448, 256
"""Of a picture."""
PIXTRAL_SIDE = 1540
"""Of the largest picture of Mistral Small 3."""
_PREPROCESSOR, _PROCESSOR, _VIDEO = (
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
_HALVES = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_MOST_ROWS = 1280
"""Of a picture of Qwen's, so that it fits into short contexts."""
_SMOLVLM_TILES_A_SIDE = 4
SMOLVLM_TILES = tuple(
    f"<row_{row}_col_{column}>"
    for row in range(1, 1 + _SMOLVLM_TILES_A_SIDE)
    for column in range(1, 1 + _SMOLVLM_TILES_A_SIDE)
)
"""Names of the tiles, which are tokens."""


def _qwen(kind: str, processor: str, shortest_edge: int, patch_size: int, **values: object) -> Files:
    """``kind``: of the video processor. Sizes are numbers of pixels, in spite of their names."""
    size = {"shortest_edge": shortest_edge, "longest_edge": _MOST_ROWS * (2 * patch_size) ** 2}
    shared = {
        "processor_class": processor,
        "size": size,
        "patch_size": patch_size,
        "merge_size": 2,
        "temporal_patch_size": 2,
        **values,
    }
    return {
        _PREPROCESSOR: {"image_processor_type": "Qwen2VLImageProcessorFast", **shared},
        _VIDEO: {"video_processor_type": f"{kind}VideoProcessor", **shared},
    }


QWEN_2_5 = _qwen("Qwen2VL", "Qwen2_5_VLProcessor", 56 * 56, 14)
QWEN_3 = _qwen("Qwen3VL", "Qwen3VLProcessor", 256 * 256, 16, **_HALVES)
INTERNVL: Files = {
    _PREPROCESSOR: {
        "image_processor_type": "GotOcr2ImageProcessorFast",
        "processor_class": "InternVLProcessor",
        "size": {"height": TILE, "width": TILE},
        "crop_to_patches": True,
        "min_patches": 1,
        "max_patches": 4,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    },
    _PROCESSOR: {"processor_class": "InternVLProcessor", "image_seq_length": INTERNVL_ROWS},
    _VIDEO: {
        "video_processor_type": "InternVLVideoProcessor",
        "processor_class": "InternVLProcessor",
        "size": {"height": TILE, "width": TILE},
    },
}
SMOLVLM: Files = {
    _PREPROCESSOR: {
        "image_processor_type": "SmolVLMImageProcessor",
        "processor_class": "SmolVLMProcessor",
        "size": {"longest_edge": _SMOLVLM_TILES_A_SIDE * TILE},
        "max_image_size": {"longest_edge": TILE},
        "do_image_splitting": True,
        **_HALVES,
    },
    _PROCESSOR: {"processor_class": "SmolVLMProcessor", "image_seq_len": (TILE // PATCH // 4) ** 2},
    _VIDEO: {
        "video_processor_type": "SmolVLMVideoProcessor",
        "processor_class": "SmolVLMProcessor",
        "size": {"longest_edge": TILE},
        "max_image_size": {"longest_edge": TILE},
    },
}
GEMMA_3: Files = {
    _PREPROCESSOR: {
        "image_processor_type": "Gemma3ImageProcessorFast",
        "processor_class": "Gemma3Processor",
        "size": {"height": GEMMA_SIDE, "width": GEMMA_SIDE},
        "image_seq_length": GEMMA_ROWS,
        **_HALVES,
    },
    _PROCESSOR: {"processor_class": "Gemma3Processor", "image_seq_length": GEMMA_ROWS},
}
_PIXTRAL = {"processor_class": "PixtralProcessor", "patch_size": PATCH}
MISTRAL_3: Files = {
    _PREPROCESSOR: {
        "image_processor_type": "PixtralImageProcessorFast",
        "size": {"longest_edge": PIXTRAL_SIDE},
        **_PIXTRAL,
    },
    _PROCESSOR: {
        "spatial_merge_size": 2,
        "image_token": "[IMG]",
        "image_break_token": "[IMG_BREAK]",
        "image_end_token": "[IMG_END]",
        **_PIXTRAL,
    },
}
