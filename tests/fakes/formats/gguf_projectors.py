"""Writes the towers and projectors of checkpoints as GGUF files, with the names and numbers of llama.cpp's converter.

Once compared with what that converter writes from the same checkpoints: names, shapes, numbers and key-values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from mmserve.checkpoint.tensor_names import canonical_name
from tests.fakes.formats.gguf_files import Tensor, neighbours, write_gguf
from tests.fakes.formats.gguf_formats import stored

_BLOCK = 32
_WEIGHTS = "model.safetensors"
_SIGLIP = {
    "embeddings.patch_embedding.": "v.patch_embd.", "embeddings.position_embedding.": "v.position_embd.",
    "post_layernorm.": "v.post_ln.", "encoder.layers.": "v.blk.", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_out", "layer_norm1": "ln1",
    "layer_norm2": "ln2", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip
_LLAVA = {
    "embeddings.class_embedding": "v.class_embd", "pre_layrnorm.": "v.pre_ln.", "linear_1": "mm.0", "linear_2": "mm.2"
}  # fmt: skip
_INTERNVL = {
    "embeddings.cls_token": "v.class_embd", "embeddings.position_embeddings": "v.position_embd.weight",
    "embeddings.patch_embeddings.projection.": "v.patch_embd.", "encoder.layer.": "v.blk.",
    "attention.q_proj": "attn_q", "attention.k_proj": "attn_k", "attention.v_proj": "attn_v",
    "attention.projection_layer": "attn_out", "layernorm_before": "ln1", "layernorm_after": "ln2",
    "lambda_1": "ls1.weight", "lambda_2": "ls2.weight", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    "layer_norm.": "mm.model.mlp.0.", "linear_1.": "mm.model.mlp.1.", "linear_2.": "mm.model.mlp.3.",
}  # fmt: skip
_PIXTRAL = {
    "patch_conv.": "v.patch_embd.", "ln_pre.": "v.pre_ln.", "transformer.layers.": "v.blk.",
    "attention.q_proj": "attn_q", "attention.k_proj": "attn_k", "attention.v_proj": "attn_v",
    "attention.o_proj": "attn_out", "attention_norm": "ln1", "ffn_norm": "ln2", "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up", "feed_forward.down_proj": "ffn_down",
    "patch_merger.merging_layer": "mm.patch_merger", "linear_1": "mm.1", "linear_2": "mm.2",
}  # fmt: skip
_QWEN = {
    "patch_embed.proj.": "v.patch_embd.", "pos_embed.": "v.position_embd.", "blocks.": "v.blk.",
    "attn.proj": "attn_out", "norm1": "ln1", "norm2": "ln2", "mlp.gate_proj": "ffn_gate",
    "merger.ln_q.": "v.post_ln.", "merger.mlp.0.": "mm.0.", "merger.mlp.2.": "mm.2.",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip
_QWEN_3 = {
    "deepstack_merger_list.": "v.deepstack.", "merger.norm.": "v.post_ln.", "merger.linear_fc1.": "mm.0.",
    "merger.linear_fc2.": "mm.2.", "mlp.linear_fc1": "ffn_up", "mlp.linear_fc2": "ffn_down", "linear_fc1.": "fc1.",
    "linear_fc2.": "fc2.", "attn.qkv": "attn_qkv",
}  # fmt: skip
Fields = dict[str, Any]


def _usual(vision: Fields, *, side: int = 0) -> Fields:
    size = side or vision["image_size"]
    return {
        "vision.image_size": size[0] if isinstance(size, list) else size,
        "vision.feed_forward_length": vision["intermediate_size"],
        "vision.block_count": vision["num_hidden_layers"],
        "vision.attention.head_count": vision["num_attention_heads"],
    }


def _llava(whole: Fields, vision: Fields, pictures: Fields) -> Fields:
    return _usual(vision) | {"use_gelu": vision["hidden_act"] == "gelu"}


def _gemma3(whole: Fields, vision: Fields, pictures: Fields) -> Fields:
    rows = int(whole["mm_tokens_per_image"] ** 0.5)
    scale = vision["image_size"] // vision["patch_size"] // rows
    return _usual(vision) | {"use_gelu": True, "vision.projector.scale_factor": scale}


def _idefics3(whole: Fields, vision: Fields, pictures: Fields) -> Fields:
    largest = pictures["size"]["longest_edge"]
    more = {"vision.projector.scale_factor": whole["scale_factor"], "vision.preproc_image_size": largest}
    return _usual(vision) | {"use_gelu": True} | more


def _internvl(whole: Fields, vision: Fields, pictures: Fields) -> Fields:
    more = {"vision.projector.scale_factor": 2, "vision.preproc_max_tiles": pictures["max_patches"]}
    return _usual(vision) | {"use_gelu": vision["hidden_act"] == "gelu"} | more


def _pixtral(whole: Fields, vision: Fields, pictures: Fields) -> Fields:
    merge = {"vision.spatial_merge_size": whole["spatial_merge_size"]} if "spatial_merge_size" in whole else {}
    activation = {f"use_{vision['hidden_act']}": True}
    found = _usual(vision, side=pictures["size"]["longest_edge"]) | activation | merge
    return found | {"vision.attention.layer_norm_epsilon": 1e-5}


def _qwen(whole: Fields, vision: Fields, pictures: Fields) -> Fields:
    """Qwen2-VL's has the language model's width in place of the MLPs'."""
    found = {
        "vision.image_size": 560,
        "vision.feed_forward_length": vision.get("intermediate_size", vision["hidden_size"]),
        "vision.block_count": vision["depth"],
        "vision.attention.head_count": vision["num_heads"],
        "vision.image_min_pixels": pictures["size"]["shortest_edge"],
        "vision.image_max_pixels": pictures["size"]["longest_edge"],
    }
    if "fullatt_block_indexes" in vision:
        found |= {"use_silu": True, "vision.n_wa_pattern": vision["fullatt_block_indexes"][0] + 1}
    if (deepstack := vision.get("deepstack_visual_indexes")) is not None:
        flags = [layer in deepstack for layer in range(vision["depth"])]
        found |= {"use_gelu": True, "vision.spatial_merge_size": 2, "vision.is_deepstack_layers": flags}
    return found


class Form(NamedTuple):
    """``names``: parts of names, without "vision." and "projector." before them -> GGUF's; all are replaced in turn."""

    kind: str
    names: Mapping[str, str]
    values: Callable[[Fields, Fields, Fields], Fields]
    """(config.json, its vision_config, preprocessor_config.json) -> key-values behind ``clip.``"""


FORMS = {
    "llava": Form("mlp", _SIGLIP | _LLAVA, _llava),
    "gemma3": Form(
        "gemma3",
        _SIGLIP | {"mm_input_projection": "mm.input_projection", "mm_soft_emb_norm": "mm.soft_emb_norm"},
        _gemma3,
    ),
    "idefics3": Form("idefics3", _SIGLIP | {"proj.weight": "mm.model.fc.weight"}, _idefics3),
    "internvl": Form("internvl", _INTERNVL, _internvl),
    "mistral3": Form("pixtral", _PIXTRAL | {"norm.weight": "mm.input_norm.weight"}, _pixtral),
    "pixtral": Form("pixtral", _PIXTRAL, _pixtral),
    "qwen2_vl": Form("qwen2vl_merger", _QWEN, _qwen),
    "qwen2_5_vl": Form("qwen2.5vl_merger", _QWEN, _qwen),
    "qwen3_vl": Form("qwen3vl_merger", _QWEN_3 | _QWEN, _qwen),
}
"""By ``model_type``; Pixtral-12B's is ``llava``."""


def projector_of(
    directory: Path,
    path: Path,
    kind: str = "F16",
    *,
    plain: Path | None = None,
    layers: int | None = None,
    exchanged: bool = False,
    **more: Any,
) -> Path:
    """Writes the tower and the projector of a checkpoint, with matrices of this ``kind`` where rows are whole blocks.

    ``plain``: a copy of the checkpoint, which gets the numbers that were stored. ``layers``: those that are stored.
    ``exchanged``: fc1 is called down, as older converters did. ``more``: key-values, with __ for dots.
    """
    whole = json.loads((directory / "config.json").read_text())
    vision, family, tensors, plain_tensors = whole["vision_config"], whole["model_type"], {}, {}
    form = FORMS["pixtral" if family == "llava" and vision["model_type"] == "pixtral" else family]
    for name, weight in load_file(directory / "model.safetensors").items():
        part, _, short = (canonical_name(family, name) or "").partition(".")
        found = _gguf_name(short, form, vision, exchanged=exchanged)
        layer = re.match(r"v\.blk\.(\d+)", found)
        if part == "text" or (layers is not None and layer is not None and int(layer[1]) >= layers):
            continue
        numbers, form_of = weight.float().numpy(), _kind_of(found, weight, kind)
        plain_tensors[name] = torch.from_numpy(stored(numbers, form_of).numbers.reshape(numbers.shape).copy())
        for piece, part_numbers in _pieces(found, numbers, form, vision):
            tensors[piece] = Tensor(form_of, part_numbers.shape, stored(part_numbers, form_of).data)
    if form.kind == "pixtral":  # a copy of an embedding, which published files have
        size = whole["text_config"]["hidden_size"]
        tensors["v.token_embd.img_break"] = Tensor("F32", (size,), bytes(4 * size))
    if plain is not None:
        save_file(load_file(plain / _WEIGHTS) | plain_tensors, plain / _WEIGHTS, metadata={"format": "pt"})
    values = _values(directory, whole, form) | ({} if layers is None else {"clip.vision.block_count": layers})
    return write_gguf(path, values | {key.replace("__", "."): each for key, each in more.items()}, tensors)


def _gguf_name(name: str, form: Form, vision: Fields, *, exchanged: bool) -> str:
    for one, other in form.names.items():
        name = name.replace(one, other)
    if exchanged:
        name = name.replace("ffn_up", "ffn_").replace("ffn_down", "ffn_up").replace("ffn_.", "ffn_down.")
    if found := re.match(r"v\.deepstack\.(\d+)", name):
        return name.replace(found[1], str(vision["deepstack_visual_indexes"][int(found[1])]), 1)
    return name


def _kind_of(name: str, weight: torch.Tensor, kind: str) -> str:
    if weight.dim() == 1 or "position_embd" in name:
        return "F32"
    if name == "mm.input_projection.weight":
        return "F16"
    return kind if kind == "F32" or (weight.dim() == 2 and weight.shape[1] % _BLOCK == 0) else "F16"


def _pieces(name: str, numbers: Any, form: Form, vision: Fields) -> Iterator[tuple[str, Any]]:
    """As converters split and change a tensor."""
    if ".attn.qkv." in name:
        for letter, part in zip("qkv", np.split(numbers, 3), strict=True):
            yield name.replace("attn.qkv", f"attn_{letter}"), part
    elif numbers.ndim == 5:
        yield name, np.ascontiguousarray(numbers[:, :, 0])
        yield f"{name}.1", np.ascontiguousarray(numbers[:, :, 1])
    elif form.kind == "pixtral" and re.search(r"attn_[qk]\.", name):
        yield name, neighbours(numbers, vision["num_attention_heads"])
    else:
        yield name, numbers + np.float32(1) if "soft_emb_norm" in name else numbers


def _values(directory: Path, whole: Fields, form: Form) -> Fields:
    vision, pictures = whole["vision_config"], {}
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (file := directory / name).exists():
            pictures = json.loads(file.read_text())
    pictures = pictures.get("image_processor", pictures)
    size = vision["patch_size"]
    values = {
        "projector_type": form.kind,
        "has_vision_encoder": True,
        "vision.patch_size": size[0] if isinstance(size, list) else size,
        "vision.embedding_length": vision.get("embed_dim", vision["hidden_size"]),
        "vision.attention.layer_norm_epsilon": float(vision.get("layer_norm_eps", 1e-6)),
        "vision.image_mean": pictures.get("image_mean", [0.48145466, 0.4578275, 0.40821073]),
        "vision.image_std": pictures.get("image_std", [0.26862954, 0.26130258, 0.27577711]),
        **form.values(whole, vision, pictures),
    }
    return {"general.architecture": "clip"} | {f"clip.{key}": value for key, value in values.items()}
