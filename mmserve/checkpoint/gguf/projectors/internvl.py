"""That of InternVL3 and 3.5: InternViT, squares of patches, a norm and two linear layers."""

from __future__ import annotations

from mmserve.checkpoint.gguf.projectors.names import Names
from mmserve.checkpoint.gguf.projectors.projector import Fields, Projector
from mmserve.checkpoint.gguf.projectors.tower import Tower

_TOWER, _PROJECTOR = "vision_tower.", "multi_modal_projector."
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}{% else %}{{ part['text'] }}{% endif %}{% endfor %}"
    "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The authors' code writes conversations itself; files have the template of the language model alone."""
_NAMES = Names(
    layer=_TOWER + "encoder.layer.{}.",
    parts={
        "attn_q": "attention.q_proj",
        "attn_k": "attention.k_proj",
        "attn_v": "attention.v_proj",
        "attn_q_norm": "attention.q_norm",
        "attn_k_norm": "attention.k_norm",
        "attn_out": "attention.projection_layer",
        "ln1": "layernorm_before",
        "ln2": "layernorm_after",
        "ls1.weight": "lambda_1",
        "ls2.weight": "lambda_2",
        "ffn_up": "mlp.fc1",
        "ffn_down": "mlp.fc2",
    },
    others={
        "v.class_embd": _TOWER + "embeddings.cls_token",
        "v.position_embd.weight": _TOWER + "embeddings.position_embeddings",
        "v.patch_embd.": _TOWER + "embeddings.patch_embeddings.projection.",
        "mm.model.mlp.0.": _PROJECTOR + "layer_norm.",
        "mm.model.mlp.1.": _PROJECTOR + "linear_1.",
        "mm.model.mlp.3.": _PROJECTOR + "linear_2.",
    },
    dimensions={"v.class_embd": 3, "v.position_embd.weight": 3},
)


def _config(tower: Tower, text: Fields) -> Fields:
    return {
        "architectures": ["InternVLForConditionalGeneration"],
        "model_type": "internvl",
        "vision_config": {
            **tower.sizes(),
            "hidden_act": tower.activation,
            "norm_type": "layer_norm" if "v.blk.0.ln1.bias" in tower.tensors else "rms_norm",
            "attention_bias": "v.blk.0.attn_q.bias" in tower.tensors,
            "use_qk_norm": "v.blk.0.attn_q_norm.weight" in tower.tensors,
        },
        "downsample_ratio": 1 / tower.number("projector.scale_factor"),
    }


def _settings(tower: Tower) -> Fields:
    return {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": tower.side(),
        "min_patches": tower.number("preproc_min_tiles", 1),
        "max_patches": tower.number("preproc_max_tiles", 12),
        **tower.colours(),
    }


INTERNVL = Projector(
    texts=("qwen2", "qwen3", "llama"),
    token="<IMG_CONTEXT>",
    output=lambda tower: tower.shape("mm.model.mlp.3.weight")[0],
    config=_config,
    settings=_settings,
    names=lambda tower: _NAMES,
    template=_TEMPLATE,
)
