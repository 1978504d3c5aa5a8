"""LLaVA-1.5's: CLIP and two linear layers.

Files hold the layers up to the feature layer, so the last one is used unless the file names another.
"""

from __future__ import annotations

from mmserve.checkpoint.gguf.projectors import siglip
from mmserve.checkpoint.gguf.projectors.names import Names
from mmserve.checkpoint.gguf.projectors.projector import Fields, Projector
from mmserve.checkpoint.gguf.projectors.tower import Tower
from mmserve.runtime.errors import StartupError

_TOWER = "vision_tower.vision_model."
_NAMES = Names(
    layer=_TOWER + "encoder.layers.{}.",
    parts=siglip.PARTS,
    others=siglip.others(_TOWER)
    | {
        "v.class_embd": _TOWER + "embeddings.class_embedding",
        "v.pre_ln.": _TOWER + "pre_layrnorm.",
        "mm.0.": "multi_modal_projector.linear_1.",
        "mm.2.": "multi_modal_projector.linear_2.",
    },
)


def _config(tower: Tower, text: Fields) -> Fields:
    layers = tower.get("feature_layer", list, [-1])
    if len(layers) != 1:
        raise StartupError(f"clip.vision.feature_layer {layers} is not supported; supported is one layer")
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "vision_config": {"model_type": "clip_vision_model", "hidden_act": tower.activation, **tower.sizes()},
        "projector_hidden_act": "gelu",
        "vision_feature_layer": layers[0],
        "multimodal_projector_bias": "mm.0.bias" in tower.tensors,
    }


def _settings(tower: Tower) -> Fields:
    """Pictures are padded to squares, as LLaVA-1.5 was trained."""
    return {
        "image_processor_type": "LlavaImageProcessor",
        "do_pad": True,
        "size": tower.side(),
        "do_center_crop": False,
        **tower.colours(),
    }


LLAVA = Projector(
    texts=("llama", "qwen2", "qwen3", "gemma3", "mistral3"),
    token="<image>",
    output=lambda tower: tower.shape("mm.2.weight")[0],
    config=_config,
    settings=_settings,
    names=lambda tower: _NAMES,
)
