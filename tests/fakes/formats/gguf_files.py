"""Writes GGUF files, from key-values and tensors or from a checkpoint of transformers."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from mmserve.checkpoint.tensor_names import canonical_name
from tests.fakes.formats.gguf_formats import stored

_NUMBERS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q4_K": 12, "Q5_K": 13,
    "Q6_K": 14, "IQ4_XS": 23, "BF16": 30,
}  # fmt: skip
_ALIGNMENT = 32
_ARCHITECTURES = {
    "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3_text": "gemma3", "mistral": "mistral3",
    "ministral3": "mistral3",
    "qwen2_vl_text": "qwen2vl", "qwen2_5_vl_text": "qwen2vl", "qwen3_vl_text": "qwen3vl",
}  # fmt: skip
_ADJACENT = ("llama", "mistral", "ministral3")
"""Converters permute their queries and keys."""
_NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
_PLAIN_NORMS = {"post_attention_layernorm": "ffn_norm"}
_SANDWICH_NORMS = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_TOKEN, _CONTROL = 1, 3
_INT32 = 5


class Tensor(NamedTuple):
    kind: str
    shape: tuple[int, ...]
    data: bytes


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Integers become uint32, in lists int32; floats float32; lists are of one type."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    head += [_string(key) + _typed(value) for key, value in metadata.items()]
    body, offset = [], 0
    for name, tensor in tensors.items():
        sizes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape[::-1])
        head.append(_string(name) + sizes + struct.pack("<IQ", _NUMBERS[tensor.kind], offset))
        body.append(tensor.data + bytes(-len(tensor.data) % _ALIGNMENT))
        offset += len(body[-1])
    header = b"".join(head)
    path.write_bytes(header + bytes(-len(header) % _ALIGNMENT) + b"".join(body))
    return path


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _typed(value: Any) -> bytes:
    if isinstance(value, list):
        kind = _INT32 if type(value[0]) is int else _kind(value[0])
        return struct.pack("<IIQ", 9, kind, len(value)) + b"".join(_plain(each, kind) for each in value)
    return struct.pack("<I", _kind(value)) + _plain(value, _kind(value))


def _kind(value: Any) -> int:
    return {bool: 7, int: 4, float: 6, str: 8}[type(value)]


def _plain(value: Any, kind: int) -> bytes:
    return _string(value) if kind == 8 else struct.pack({7: "<?", 4: "<I", 5: "<i", 6: "<f"}[kind], value)


def gguf_of(
    directory: Path,
    path: Path,
    kind_of: Callable[[str], str],
    plain: Path | None = None,
    extra: Mapping[str, Tensor] | None = None,
    **more: Any,
) -> Path:
    """Writes a text checkpoint as GGUF. ``kind_of``: name of a matrix in the file -> its format.

    ``plain``: gets the checkpoint with the numbers that were stored, for transformers. ``extra``: further tensors.
    ``more``: key-values, with __ for dots.
    """
    whole = json.loads((directory / "config.json").read_text())
    config = whole.get("text_config") or whole
    kind, tensors, plain_tensors = config["model_type"], {}, {}
    for name, weight in load_file(directory / "model.safetensors").items():
        part, _, rest = (canonical_name(whole["model_type"], name) or "").partition(".")
        if part != "text":
            plain_tensors[name] = weight
            continue
        found = _gguf_name(rest, sandwich=kind == "gemma3_text")
        numbers = weight.float().numpy()
        if weight.dim() == 1:
            offset = np.float32(kind == "gemma3_text" and "norm" in found)
            tensors[found] = Tensor("F32", weight.shape, _permuted(config, found, numbers + offset).tobytes())
            plain_tensors[name] = weight.float()
            continue
        form = kind_of(found)
        rows = stored(_permuted(config, found, numbers), form)
        tensors[found] = Tensor(form, weight.shape, rows.data)
        plain_tensors[name] = torch.from_numpy(_permuted(config, found, rows.numbers, back=True).copy())
    if plain is not None:
        shutil.copytree(directory, plain, dirs_exist_ok=True)
        save_file(plain_tensors, plain / "model.safetensors", metadata={"format": "pt"})
    metadata = (
        _metadata(config) | tokenizer_values(directory) | {key.replace("__", "."): each for key, each in more.items()}
    )
    return write_gguf(path, metadata, tensors | dict(extra or {}))


def _gguf_name(name: str, *, sandwich: bool) -> str:
    module, _, last = name.rpartition(".")
    if module in _NAMES:
        return f"{_NAMES[module]}.{last}"
    _, layer, part = module.split(".", 2)
    return f"blk.{layer}.{(_NAMES | (_SANDWICH_NORMS if sandwich else _PLAIN_NORMS))[part]}.{last}"


def _permuted(config: dict[str, Any], name: str, rows: Any, *, back: bool = False) -> Any:
    """Of Llama's queries and keys."""
    if config["model_type"] not in _ADJACENT or not any(part in name for part in ("attn_q.", "attn_k.")):
        return rows
    return neighbours(rows, config["num_attention_heads" if "attn_q" in name else "num_key_value_heads"], back=back)


def neighbours(rows: Any, heads: int, *, back: bool = False) -> Any:
    """Rows i and i + dim / 2 of each head side by side; ``back``: undone."""
    pairs = rows.reshape(heads, *((-1, 2) if back else (2, -1)), *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def _metadata(config: dict[str, Any]) -> dict[str, Any]:
    name = _ARCHITECTURES[config["model_type"]]
    rope = config.get("rope_parameters") or {}
    local = rope.get("sliding_attention", {})
    rope = rope.get("full_attention", rope)
    found = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope.get("rope_theta", 10_000.0)),
    }
    if config.get("head_dim"):
        found |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
    if name == "gemma3":
        found |= {"attention.sliding_window": config["sliding_window"]}
        found |= {"rope.freq_base_swa": float(local["rope_theta"])}
    if sections := rope.get("mrope_section"):
        found |= {"rope.dimension_sections": [*sections, 0]}
    if rope.get("rope_type") == "linear":
        found |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope["factor"])}
    if rope.get("rope_type") == "yarn":
        found |= {"rope.scaling.type": "yarn", "rope.scaling.factor": float(rope["factor"])}
        found |= {"rope.scaling.original_context_length": rope["original_max_position_embeddings"]}
    names = {
        "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
        "llama_4_scaling_beta": "attention.temperature_scale",
    }
    found |= {names[key]: float(rope[key]) for key in names if key in rope}
    values = {f"{name}.{key}": value for key, value in found.items()}
    return {"general.architecture": name, "general.file_type": 15} | values


def tokenizer_values(directory: Path, pre: str = "gpt-2") -> dict[str, Any]:
    """Of a byte-level tokenizer.json."""
    definition = json.loads((directory / "tokenizer.json").read_text())
    config = json.loads((directory / "tokenizer_config.json").read_text())
    ids = dict(definition["model"]["vocab"]) | {each["content"]: each["id"] for each in definition["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    assert [ids[token] for token in tokens] == list(range(len(tokens)))
    special = {each["content"] for each in definition["added_tokens"]}
    merges = [" ".join(merge) for merge in definition["model"]["merges"]]
    template = directory / "chat_template.jinja"
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_CONTROL if token in special else _TOKEN for token in tokens],
        **({"tokenizer.ggml.merges": merges} if merges else {}),
        "tokenizer.ggml.bos_token_id": ids[config["bos_token"]],
        "tokenizer.ggml.eos_token_id": ids[config["eos_token"]],
    } | ({"tokenizer.chat_template": template.read_text()} if template.exists() else {})
