"""Key-values of a GGUF language model -> what config.json would say.

A key of the architecture that is not known, and says something, is refused by name.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mmserve.checkpoint.gguf.names import ROPE_DIVISORS
from mmserve.checkpoint.gguf.reader import GgufHeader, GgufTensor, Metadata
from mmserve.runtime.errors import StartupError

_KNOWN = {
    "block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "attention.sliding_window",
    "rope.dimension_count", "rope.freq_base", "rope.freq_base_swa", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.attn_factor", "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier", "rope.dimension_sections", "n_deepstack_layers", "attention.temperature_scale",
}  # fmt: skip
_GEMMA_PATTERN = 6
_GEMMA_27B_LAYERS = 62
_YARN = {
    "attention_factor": "rope.scaling.attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "llama_4_scaling_beta": "attention.temperature_scale",
}
"""Fields that only some files have."""
_AXES = 3
"""Of positions of pictures. Files have a fourth section, of no pair."""


class Architecture(NamedTuple):
    """One value of ``general.architecture``."""

    model_type: str
    name: str
    """As config.json has it."""
    more: Callable[[_Values], dict[str, Any]]
    """Fields that others do not have."""
    adjacent_rope: bool = False
    """A pair that turns is two adjacent numbers: converters permute rows of queries and keys so."""
    offset_norms: bool = False
    """Hugging Face's checkpoints store norms less 1, GGUF does not."""
    sandwich_norms: bool = False


class _Values:
    """The key-values of one architecture."""

    def __init__(self, metadata: Metadata, prefix: str) -> None:
        self._metadata, self._prefix = metadata, prefix

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """Raises StartupError if there is neither a value nor a default. Of equal values for each layer, the one."""
        key = f"{self._prefix}.{name}"
        value = self._metadata.get(key, default)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if value is None:
            raise StartupError(f"{key} is missing")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise StartupError(f"{key} {str(value)[:80]} is not supported")
        return value

    def list(self, name: str) -> list[Any]:
        """Raises StartupError if there is none."""
        found = self._metadata.get(f"{self._prefix}.{name}")
        if not isinstance(found, list):
            raise StartupError(f"{self._prefix}.{name} {found!r} is no list")
        return found

    def has(self, name: str) -> bool:
        return f"{self._prefix}.{name}" in self._metadata

    def check_known(self) -> None:
        for key, value in self._metadata.items():
            name = key.removeprefix(f"{self._prefix}.")
            if name != key and value and name not in _KNOWN:
                raise StartupError(f"{key} {str(value)[:80]} is not supported")


def _none(values: _Values) -> dict[str, Any]:
    return {}


def _qwen2(values: _Values) -> dict[str, Any]:
    return {"use_sliding_window": False}


def _axes(values: _Values) -> dict[str, Any]:
    """Of text alone, positions on all axes are the same, so only models with pictures read the sections."""
    return _qwen2(values) | {"mrope_section": values.list("rope.dimension_sections")[:_AXES]}


def _gemma3(values: _Values) -> dict[str, Any]:
    heads, layers = values.get("attention.head_count", int), values.get("block_count", int)
    of_27b = layers == _GEMMA_27B_LAYERS
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": values.get("embedding_length", int) / heads if of_27b else _head_dim(values),
        "sliding_window": values.get("attention.sliding_window", int),
        "sliding_window_pattern": _GEMMA_PATTERN,
        "rope_local_base_freq": values.get("rope.freq_base_swa", float, 10_000.0),
    }


ARCHITECTURES = {
    "llama": Architecture("llama", "LlamaForCausalLM", _none, adjacent_rope=True),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", _qwen2),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", _qwen2),
    "qwen2vl": Architecture("qwen2", "Qwen2ForCausalLM", _axes),
    "qwen3vl": Architecture("qwen3", "Qwen3ForCausalLM", _axes),
    "mistral3": Architecture("llama", "LlamaForCausalLM", _none, adjacent_rope=True),
    "gemma3": Architecture("gemma3_text", "Gemma3ForCausalLM", _gemma3, offset_norms=True, sandwich_norms=True),
}


def architecture_of(metadata: Metadata) -> Architecture:
    """Raises StartupError if it is not supported."""
    name = metadata.get("general.architecture")
    if name not in ARCHITECTURES:
        raise StartupError(
            f"general.architecture {name!r} is not supported as GGUF; supported are {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]


def text_config(path: Path, header: GgufHeader) -> dict[str, Any]:
    """Raises StartupError for what is not supported."""
    metadata, tensors = header
    if metadata.get("split.count", 1) > 1:
        raise StartupError("it is a part of a split file; join its parts with llama-gguf-split --merge")
    architecture = architecture_of(metadata)
    values = _Values(metadata, metadata["general.architecture"])
    values.check_known()
    embedding, biases = _tensor(tensors, "token_embd.weight"), _has_biases(tensors)
    heads = values.get("attention.head_count", int)
    return {
        "architectures": [architecture.name],
        "model_type": architecture.model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": values.get("embedding_length", int),
        "intermediate_size": values.get("feed_forward_length", int),
        "num_hidden_layers": values.get("block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": values.get("attention.head_count_kv", int, heads),
        "head_dim": _head_dim(values),
        "rms_norm_eps": values.get("attention.layer_norm_rms_epsilon", float),
        "max_position_embeddings": values.get("context_length", int),
        "rope_theta": values.get("rope.freq_base", float, 10_000.0),
        "rope_scaling": _rope_scaling(path, values, tensors.get(ROPE_DIVISORS)),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": biases and architecture.model_type != "qwen2",
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
        **architecture.more(values),
    }


def _tensor(tensors: dict[str, GgufTensor], name: str) -> GgufTensor:
    if name not in tensors:
        raise StartupError(f"tensor {name} is missing")
    return tensors[name]


def _has_biases(tensors: dict[str, GgufTensor]) -> bool:
    return "blk.0.attn_q.bias" in tensors


def _head_dim(values: _Values) -> int:
    """Raises StartupError if keys and values differ, or a part of a head turns."""
    hidden, heads = values.get("embedding_length", int), values.get("attention.head_count", int)
    size: int = values.get("attention.key_length", int, hidden // max(1, heads))
    for name in ("attention.value_length", "rope.dimension_count"):
        if (other := values.get(name, int, size)) != size:
            raise StartupError(f"{name} {other} beside heads of {size} is not supported")
    return size


def _rope_scaling(path: Path, values: _Values, divisors: GgufTensor | None) -> dict[str, Any] | None:
    context = values.get("context_length", int)
    if divisors is not None:
        if divisors.kind.name != "F32":
            raise StartupError(f"{ROPE_DIVISORS} of type {divisors.kind.name} is not supported")
        with path.open("rb") as file:
            file.seek(divisors.start)
            factors = list(struct.unpack(f"<{divisors.nbytes // 4}f", file.read(divisors.nbytes)))
        return {
            "rope_type": "longrope",  # with a divisor for each pair, as Llama 3.1's kind comes to
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": context,
        }
    kind = values.get("rope.scaling.type", str, "linear" if values.has("rope.scaling.factor") else "none")
    if kind != "yarn" and values.get("attention.temperature_scale", float, 0.0):
        raise StartupError(f"attention.temperature_scale beside rope.scaling.type {kind!r} is not supported")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise StartupError(f"rope.scaling.type {kind!r} is not supported; supported are none, linear and yarn")
    found = {"rope_type": kind, "factor": values.get("rope.scaling.factor", float)}
    if kind == "linear":
        return found
    found |= {"original_max_position_embeddings": values.get("rope.scaling.original_context_length", int, context)}
    if values.has("rope.scaling.yarn_log_multiplier"):
        found["mscale"] = 1.0  # files have no other one
    return found | {field: values.get(name, float) for field, name in _YARN.items() if values.has(name)}
