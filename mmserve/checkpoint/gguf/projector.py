"""A vision tower and its projector from the GGUF file beside the language model's (``mmproj-*.gguf``): LLaVA's.

Format: tools/mtmd/clip-impl.h of llama.cpp. Files hold the layers up to the feature layer, so the last one is used
unless the file names another.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mmserve.checkpoint.gguf.reader import GgufHeader, GgufTensor, Metadata
from mmserve.runtime.errors import StartupError

PLACEHOLDER = "<image>"
"""The token that stands for a row of a picture."""
_KIND = "mlp"
_LAYER = re.compile(r"v\.blk\.(\d+)\.(\w+)\.(weight|bias)")
_TOWER, _PROJECTOR = "vision_tower.vision_model.", "multi_modal_projector."
_OTHERS = {
    "v.class_embd": "embeddings.class_embedding",
    "v.patch_embd.weight": "embeddings.patch_embedding.weight",
    "v.position_embd.weight": "embeddings.position_embedding.weight",
    "v.pre_ln.weight": "pre_layrnorm.weight",
    "v.pre_ln.bias": "pre_layrnorm.bias",
    "v.post_ln.weight": "post_layernorm.weight",
    "v.post_ln.bias": "post_layernorm.bias",
}
_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_EXCHANGED = _PARTS | {"ffn_up": "mlp.fc2", "ffn_down": "mlp.fc1"}
"""As older converters named them."""
_LINEAR = {"mm.0.": "linear_1.", "mm.2.": "linear_2."}


def is_projector(path: Path) -> bool:
    return "mmproj" in path.name.lower()


def projector_beside(file: Path) -> Path | None:
    """Raises StartupError if there are several."""
    found = [each.resolve() for each in sorted(file.parent.glob("*.gguf")) if is_projector(each)]
    if len(found) > 1:
        raise StartupError(f"beside it lie several projectors ({', '.join(each.name for each in found)}): keep one")
    return found[0] if found else None


def check_supported(metadata: Metadata) -> None:
    """Raises StartupError with the name of another projector."""
    if (architecture := metadata.get("general.architecture")) != "clip":
        raise StartupError(f"general.architecture {architecture!r} is not that of a projector")
    if metadata.get("clip.has_audio_encoder"):
        raise StartupError("a projector for audio is not supported")
    kind = metadata.get("clip.projector_type", metadata.get("clip.vision.projector_type"))
    if kind is None and metadata.get("clip.has_llava_projector"):
        kind = _KIND
    if kind != _KIND:
        raise StartupError(f"clip.projector_type {kind!r} is not supported; supported is {_KIND} (LLaVA)")


def multimodal_config(header: GgufHeader, text: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
    """config.json of the whole model. ``text``: of its language model. Raises StartupError."""
    check_supported(header.metadata)
    if PLACEHOLDER not in tokens:
        raise StartupError(f"the vocabulary has no token {PLACEHOLDER}, which stands for pictures in prompts")
    values = header.metadata
    layers = values.get("clip.vision.feature_layer", [-1])
    if not isinstance(layers, list) or len(layers) != 1:
        raise StartupError(f"clip.vision.feature_layer {layers} is not supported; supported is one layer")
    activation = "gelu" if values.get("clip.use_gelu") else "silu" if values.get("clip.use_silu") else "quick_gelu"
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": text,
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": _number(values, "embedding_length"),
            "intermediate_size": _number(values, "feed_forward_length"),
            "num_hidden_layers": _number(values, "block_count"),
            "num_attention_heads": _number(values, "attention.head_count"),
            "image_size": _number(values, "image_size"),
            "patch_size": _number(values, "patch_size"),
            "layer_norm_eps": _number(values, "attention.layer_norm_epsilon", float),
            "hidden_act": activation,
        },
        "projector_hidden_act": "gelu",
        "vision_feature_layer": layers[0],
        "multimodal_projector_bias": "mm.0.bias" in header.tensors,
        "image_token_index": tokens.index(PLACEHOLDER),
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


def image_settings(metadata: Metadata) -> dict[str, Any]:
    """preprocessor_config.json: pictures are padded to squares, as LLaVA-1.5 was trained."""
    side = _number(metadata, "image_size")
    return {
        "image_processor_type": "LlavaImageProcessor",
        "do_pad": True,
        "size": {"height": side, "width": side},
        "do_center_crop": False,
        "image_mean": _three(metadata, "image_mean"),
        "image_std": _three(metadata, "image_std"),
    }


def named(header: GgufHeader) -> list[GgufTensor]:
    """With names of Hugging Face's checkpoints. An unknown name stays, so that loading reports it."""
    inner = header.metadata.get("clip.vision.feed_forward_length")
    up = header.tensors.get("v.blk.0.ffn_up.weight")
    parts = _PARTS if up is None or up.shape[0] == inner else _EXCHANGED
    return [tensor._replace(name=_name(tensor.name, parts)) for tensor in header.tensors.values()]


def _name(stored: str, parts: dict[str, str]) -> str:
    if found := _LAYER.fullmatch(stored):
        layer, part, last = found.groups()
        return f"{_TOWER}encoder.layers.{layer}.{parts[part]}.{last}" if part in parts else stored
    if stored in _OTHERS:
        return _TOWER + _OTHERS[stored]
    for prefix, name in _LINEAR.items():
        if stored.startswith(prefix):
            return _PROJECTOR + name + stored.removeprefix(prefix)
    return stored


def _number(metadata: Metadata, name: str, kind: type = int) -> Any:
    found = metadata.get(f"clip.vision.{name}")
    if not isinstance(found, kind) or isinstance(found, bool):
        raise StartupError(f"clip.vision.{name} {found!r} is no {kind.__name__}")
    return found


def _three(metadata: Metadata, name: str) -> list[float]:
    found = metadata.get(f"clip.vision.{name}")
    if not isinstance(found, list) or len(found) != 3:
        raise StartupError(f"clip.vision.{name} {found!r} is not three numbers")
    return [float(each) for each in found]
