"""Names of tensors: those of GGUF, and those that the same models have in Hugging Face's checkpoints."""

from __future__ import annotations

import re

_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
_OTHERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SANDWICH_PARTS = _PARTS | {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Of models with norms before and after each block."""
ROPE_DIVISORS = "rope_freqs.weight"
"""No weight: see ``text_config``."""


def text_name(stored: str, *, sandwich_norms: bool) -> str:
    """Of a tensor of the language model. An unknown name stays, so that loading reports it."""
    if (found := _LAYER.fullmatch(stored)) is None:
        return _OTHERS.get(stored, stored)
    layer, part, last = found.groups()
    name = (_SANDWICH_PARTS if sandwich_norms else _PARTS).get(part)
    return stored if name is None else f"model.layers.{layer}.{name}.{last}"
