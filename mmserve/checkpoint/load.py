"""Reads a checkpoint directory's JSON files into a ModelSpec, and checks that the model can be served.

Weights are not read, except to compare a tied output head with the embedding (``tied_head``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from mmserve.checkpoint.hf_config import (
    LLAVA_VISION,
    ClipVisionJson,
    GenerationJson,
    LlamaJson,
    LlavaJson,
    MistralJson,
    RopeJson,
    TokenIds,
)
from mmserve.checkpoint.spec import ModelSpec, RopeScaling, TextSpec, VisionSpec
from mmserve.checkpoint.tied_head import has_own_head
from mmserve.runtime.errors import StartupError

SUPPORTED = "LlamaForCausalLM, MistralForCausalLM (no sliding window), LlavaForConditionalGeneration (CLIP + either)"
_TEXT_CONFIGS: dict[str, type[LlamaJson]] = {"llama": LlamaJson, "mistral": MistralJson}
_TEXT_ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral"}
_ACTIVATIONS = frozenset({"silu", "gelu", "gelu_pytorch_tanh", "quick_gelu", "relu"})
_DEFAULT_ROPE_THETA = 10_000.0
_LLAVA_IMAGE_TOKEN = 32000
S = TypeVar("S")


def load(directory: Path) -> ModelSpec:
    """Read a checkpoint directory. Raises StartupError if it is unreadable, unsupported, quantised or lacks weights."""
    directory = directory.resolve()
    config = read_json(directory / "config.json")
    if config is None:
        raise StartupError(f"{directory} holds no config.json, so it is not a checkpoint directory")
    if "quantization_config" in config or "compression_config" in config:
        raise StartupError(f"{directory} is a quantised checkpoint; mmserve serves unquantised safetensors")
    weight_files(directory)
    architecture = _architecture(config)
    if architecture in _TEXT_ARCHITECTURES:
        return _text_model(directory, _text_config(config, _TEXT_ARCHITECTURES[architecture]))
    if architecture == "LlavaForConditionalGeneration":
        return _llava_model(directory, _convert(config, LlavaJson))
    raise StartupError(f"{architecture} is not supported; supported are {SUPPORTED}")


def check_tp(spec: ModelSpec, tp: int) -> None:
    """Raise StartupError, listing valid sizes, unless ``tp`` ranks can share the model's heads evenly."""
    text = spec.text
    dims = (text.num_heads, text.num_kv_heads, text.intermediate_size)
    if all(dim % tp == 0 for dim in dims):
        return
    valid = [str(size) for size in range(1, text.num_kv_heads + 1) if all(dim % size == 0 for dim in dims)]
    raise StartupError(
        f"--tp {tp} does not divide the model's {text.num_heads} query heads, {text.num_kv_heads} KV heads and "
        f"intermediate size {text.intermediate_size}; --tp can be {', '.join(valid)}"
    )


def weight_files(directory: Path) -> list[Path]:
    """The checkpoint's safetensors files, sorted. Raises StartupError if there are none or a shard is missing."""
    index = read_json(directory / "model.safetensors.index.json")
    if index is None:
        files = [directory / "model.safetensors"]
    else:
        names = set(cast("dict[str, str]", index.get("weight_map", {})).values())
        files = [directory / Path(name).name for name in sorted(names)]
    missing = [file.name for file in files if not file.is_file()]
    if not files or missing:
        raise StartupError(
            f"{directory} lacks its weights ({', '.join(missing) or 'empty index'}); mmserve reads safetensors only"
        )
    return files


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file does not exist. Raises StartupError if it cannot be parsed."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise StartupError(f"cannot read {file}: {error}") from None


def _architecture(config: dict[str, Any]) -> str:
    by_type = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "llava": "LlavaForConditionalGeneration"}
    names = config.get("architectures") or [by_type.get(config.get("model_type", ""), "an unnamed architecture")]
    return str(names[0])


def _text_config(raw: dict[str, Any], model_type: str) -> LlamaJson:
    if model_type not in _TEXT_CONFIGS:
        raise StartupError(f"text model {model_type!r} is not supported; supported are {SUPPORTED}")
    return _convert(raw, _TEXT_CONFIGS[model_type])


def _convert(raw: dict[str, Any], struct: type[S], file: str = "config.json") -> S:
    try:
        return msgspec.convert(raw, struct)
    except msgspec.ValidationError as error:
        raise StartupError(f"{file}: {error}") from None


def _text_model(directory: Path, config: LlamaJson) -> ModelSpec:
    generation = _generation(directory)
    return ModelSpec(
        family="llama",
        path=str(directory),
        text=_text_spec(config, tied=_is_tied(directory, config)),
        eos_token_ids=_eos_ids(directory, generation, config),
        bos_token_id=generation.bos_token_id or config.bos_token_id,
        checkpoint_dtype=config.dtype or config.torch_dtype or "float32",
    )


def _llava_model(directory: Path, config: LlavaJson) -> ModelSpec:
    raw = config.text_config or {}
    text = _text_config(raw, str(raw.get("model_type", "llama")))
    generation = _generation(directory)
    token = next((t for t in (config.image_token_index, config.image_token_id) if t is not None), _LLAVA_IMAGE_TOKEN)
    dtypes = (config.dtype, config.torch_dtype, text.dtype, text.torch_dtype)
    return ModelSpec(
        family="llava",
        path=str(directory),
        text=_text_spec(text, tied=_is_tied(directory, config, text)),
        vision=_vision_spec(config, config.vision_config or LLAVA_VISION),
        image_token_id=token,
        eos_token_ids=_eos_ids(directory, generation, text),
        bos_token_id=generation.bos_token_id or text.bos_token_id,
        checkpoint_dtype=next((dtype for dtype in dtypes if dtype), "float32"),
    )


def _is_tied(directory: Path, *configs: LlamaJson | LlavaJson) -> bool:
    """True if the output head shares the embedding's weight."""
    return any(config.tie_word_embeddings for config in configs) and not has_own_head(weight_files(directory))


def _text_spec(config: LlamaJson, *, tied: bool) -> TextSpec:
    if config.sliding_window is not None and config.sliding_window < config.max_position_embeddings:
        raise StartupError(
            f"sliding-window attention ({config.sliding_window} of {config.max_position_embeddings} positions) "
            f"is not supported; supported are {SUPPORTED}"
        )
    _check_activation(config.hidden_act)
    rope = config.rope_scaling or config.rope_parameters or RopeJson()
    return TextSpec(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        max_position=config.max_position_embeddings,
        rms_eps=config.rms_norm_eps,
        rope_theta=rope.rope_theta or config.rope_theta or _DEFAULT_ROPE_THETA,
        rope_scaling=_rope_scaling(rope, config.max_position_embeddings),
        tie_embeddings=tied,
        qkv_bias=config.attention_bias,
        attention_out_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        activation=config.hidden_act,
    )


def _rope_scaling(rope: RopeJson, max_position: int) -> RopeScaling:
    kind = rope.rope_type or rope.type or "default"
    if kind not in ("default", "linear", "llama3") or rope.partial_rotary_factor != 1.0:
        raise StartupError(f"rope type {kind!r} is not supported; supported are default, linear and llama3, unpartial")
    return RopeScaling(
        kind=cast(Literal["default", "linear", "llama3"], kind),
        factor=rope.factor,
        low_freq_factor=rope.low_freq_factor,
        high_freq_factor=rope.high_freq_factor,
        original_max_position=rope.original_max_position_embeddings or max_position,
    )


def _vision_spec(config: LlavaJson, vision: ClipVisionJson) -> VisionSpec:
    strategy = config.vision_feature_select_strategy
    if vision.model_type not in ("clip_vision_model", "clip") or vision.num_channels != 3:
        raise StartupError(f"vision tower {vision.model_type!r} is not supported; supported are {SUPPORTED}")
    if not isinstance(config.vision_feature_layer, int) or strategy not in ("default", "full"):
        raise StartupError("only one vision_feature_layer, and strategy 'default' or 'full', are supported")
    for activation in (vision.hidden_act, config.projector_hidden_act):
        _check_activation(activation)
    patches = (vision.image_size // vision.patch_size) ** 2
    return VisionSpec(
        image_size=vision.image_size,
        patch_size=vision.patch_size,
        hidden_size=vision.hidden_size,
        intermediate_size=vision.intermediate_size,
        num_layers=vision.num_hidden_layers,
        num_heads=vision.num_attention_heads,
        layer_norm_eps=vision.layer_norm_eps,
        activation=vision.hidden_act,
        feature_layer=config.vision_feature_layer,
        select_strategy=cast(Literal["default", "full"], strategy),
        projector_activation=config.projector_hidden_act,
        projector_bias=config.multimodal_projector_bias,
        # "default" drops the class token; "full" keeps it.
        num_image_tokens=patches + (strategy == "full"),
    )


def _check_activation(name: str) -> None:
    if name not in _ACTIVATIONS:
        raise StartupError(f"activation {name!r} is not supported; supported are {', '.join(sorted(_ACTIVATIONS))}")


def _generation(directory: Path) -> GenerationJson:
    name = "generation_config.json"
    return _convert(read_json(directory / name) or {}, GenerationJson, name)


def _eos_ids(directory: Path, generation: GenerationJson, config: LlamaJson) -> tuple[int, ...]:
    """EOS ids of generation_config or else config, and the tokenizer's: many fine-tunes set it only there."""
    ids = _as_list(generation.eos_token_id) or _as_list(config.eos_token_id)
    return tuple(dict.fromkeys([*ids, *_tokenizer_eos(directory)]))


def _as_list(ids: TokenIds) -> list[int]:
    return [] if ids is None else [ids] if isinstance(ids, int) else ids


def _tokenizer_eos(directory: Path) -> list[int]:
    eos_token = (read_json(directory / "tokenizer_config.json") or {}).get("eos_token")
    text = eos_token.get("content") if isinstance(eos_token, dict) else eos_token
    added = (read_json(directory / "tokenizer.json") or {}).get("added_tokens") or []
    return [int(token["id"]) for token in added if text is not None and token.get("content") == text]
