"""The published shapes that are measured, as their config.json has them. No torch, no weights."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.gpu.rates.floors import DecoderShape, TowerShape

Json = dict[str, Any]


class Shape(NamedTuple):
    """``config``: config.json. ``files``: others that a checkpoint of this kind has."""

    config: Json
    files: dict[str, Json] = {}  # noqa: RUF012 - never changed

    @property
    def text(self) -> Json:
        found: Json = self.config.get("text_config", self.config)
        return found

    @property
    def decoder(self) -> DecoderShape:
        """What floors are computed of."""
        text = self.text
        heads = text["num_attention_heads"]
        return DecoderShape(
            hidden=text["hidden_size"],
            inner=text["intermediate_size"],
            layers=text["num_hidden_layers"],
            heads=heads,
            kv_heads=text["num_key_value_heads"],
            head_dim=text["hidden_size"] // heads,
            vocab=text["vocab_size"],
        )

    @property
    def tower(self) -> TowerShape:
        """Of a Qwen2.5-VL."""
        vision = self.config["vision_config"]
        return TowerShape(
            hidden=vision["hidden_size"],
            inner=vision["intermediate_size"],
            layers=vision["depth"],
            full_layers=len(vision["fullatt_block_indexes"]),
            window=(vision["window_size"] // vision["patch_size"]) ** 2,
            patch_nums=3 * vision["temporal_patch_size"] * vision["patch_size"] ** 2,
            square=vision["spatial_merge_size"] ** 2,
            out=vision["out_hidden_size"],
        )


_LLAMA: Json = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_QWEN: Json = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "torch_dtype": "bfloat16",
}
_QWEN_VL_TEXT: Json = _QWEN | {
    "model_type": "qwen2_5_vl_text",
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
    "tie_word_embeddings": False,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
}
_QWEN_VL_TOWER: Json = {
    "model_type": "qwen2_5_vl",
    "depth": 32,
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "in_chans": 3,
    "out_hidden_size": 3584,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "spatial_patch_size": 14,
    "temporal_patch_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "tokens_per_second": 2,
    "hidden_act": "silu",
}


def _qwen_vl(text: Json, vision: Json) -> Json:
    """In the layout that it was published in: the text's settings at the top."""
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "text_config": text,
        "vision_config": vision,
        "image_token_id": 5,
        "video_token_id": 6,
        "vision_start_token_id": 3,
        "vision_end_token_id": 4,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


_SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "vocab_size": 512}
_SMALL_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
SHAPES = {
    "Llama-3.1-8B": Shape(_LLAMA),
    "Qwen2.5-1.5B": Shape(_QWEN),
    "Qwen2.5-VL-7B": Shape(_qwen_vl(_QWEN_VL_TEXT, _QWEN_VL_TOWER)),
}
_SMALL_TOWER = {"hidden_size": 64, "intermediate_size": 96, "depth": 2, "num_heads": 2, "out_hidden_size": 128}
_SMALL_VL_TEXT = _QWEN_VL_TEXT | _SMALL | _SMALL_HEADS | {"rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}}
SMALL = {
    "Llama-3.1-8B": Shape(_LLAMA | _SMALL | _SMALL_HEADS),
    "Qwen2.5-1.5B": Shape(_QWEN | _SMALL | _SMALL_HEADS),
    "Qwen2.5-VL-7B": Shape(_qwen_vl(_SMALL_VL_TEXT, _QWEN_VL_TOWER | _SMALL_TOWER | {"fullatt_block_indexes": [1]})),
}
"""Stand-ins of the same names, for a run without a GPU."""
