"""Names in the layers of SigLIP's and CLIP's transformers."""

from __future__ import annotations

PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln1": "layer_norm1",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
OTHERS = {
    "v.patch_embd.": "embeddings.patch_embedding.",
    "v.position_embd.": "embeddings.position_embedding.",
    "v.post_ln.": "post_layernorm.",
}


def others(tower: str) -> dict[str, str]:
    """Outside of layers, where the tower's names begin with ``tower``."""
    return {stored: tower + name for stored, name in OTHERS.items()}
