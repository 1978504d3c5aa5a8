"""That of Mistral-Small-3, Ministral 3 and Pixtral-12B: Pixtral's tower, a merger or none, and two linear layers."""

from __future__ import annotations

from mmserve.checkpoint.gguf.projectors.names import Names
from mmserve.checkpoint.gguf.projectors.projector import Fields, Projector
from mmserve.checkpoint.gguf.projectors.tower import Tower

_TOWER, _PROJECTOR = "vision_tower.", "multi_modal_projector."
_MERGER = "mm.patch_merger.weight"
_NAMES = Names(
    layer=_TOWER + "transformer.layers.{}.",
    parts={
        "attn_q": "attention.q_proj",
        "attn_k": "attention.k_proj",
        "attn_v": "attention.v_proj",
        "attn_out": "attention.o_proj",
        "ln1": "attention_norm",
        "ln2": "ffn_norm",
        "ffn_gate": "feed_forward.gate_proj",
        "ffn_up": "feed_forward.up_proj",
        "ffn_down": "feed_forward.down_proj",
    },
    others={
        "v.patch_embd.": _TOWER + "patch_conv.",
        "v.pre_ln.": _TOWER + "ln_pre.",
        "mm.input_norm.": _PROJECTOR + "norm.",
        _MERGER: _PROJECTOR + "patch_merger.merging_layer.weight",
        "mm.1.": _PROJECTOR + "linear_1.",
        "mm.2.": _PROJECTOR + "linear_2.",
    },
)


def _config(tower: Tower, text: Fields) -> Fields:
    sizes = tower.sizes() | {"rope_theta": float(tower.of_whole("rope.freq_base", 10_000.0))}
    found = {
        "vision_config": {"model_type": "pixtral", "hidden_act": tower.activation, **sizes},
        "vision_feature_layer": -1,
        "multimodal_projector_bias": "mm.1.bias" in tower.tensors,
    }
    if _MERGER not in tower.tensors:
        of_pixtral = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}
        return found | of_pixtral | {"vision_feature_select_strategy": "full"}
    return found | {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "spatial_merge_size": tower.number("spatial_merge_size"),
    }


def _settings(tower: Tower) -> Fields:
    size = {"longest_edge": tower.number("image_size")}
    return {"image_processor_type": "PixtralImageProcessor", "size": size, **tower.colours()}


PIXTRAL = Projector(
    texts=("llama", "mistral3"),
    token="[IMG]",
    output=lambda tower: tower.shape("mm.2.weight")[0],
    config=_config,
    settings=_settings,
    names=lambda tower: _NAMES._replace(turned_heads=tower.number("attention.head_count")),
)
