"""Architecture name in config.json -> how that model is read. A family's module is imported on first use.

Text families are listed here, those with pictures in ``vision_families``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, cast

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.config.stop_tokens import ends_of_text
from mmserve.checkpoint.config.text_config import TextJson
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision_families import FAMILIES
from mmserve.runtime.errors import StartupError

TEXT = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MinistralForCausalLM": "ministral",
    "Ministral3ForCausalLM": "ministral3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "SmolLM3ForCausalLM": "smollm3",
    "Gemma3ForCausalLM": "gemma3_text",
    "Phi3ForCausalLM": "phi3",
    "Ernie4_5ForCausalLM": "ernie4_5",
}
"""A family is also the ``model_type`` of its config.json."""
_VISION = {name: family for family, entry in FAMILIES.items() for name in entry.architectures}
ARCHITECTURES = TEXT | _VISION
SERVED = ", ".join(ARCHITECTURES)


def read_model(directory: Path, config: dict[str, Any]) -> ModelSpec:
    """Raises StartupError if the architecture, or a part of it, is not supported."""
    family = _family(config)
    if family in FAMILIES:
        return cast(ModelSpec, _module(family).model(directory, config))
    text = text_config(config, default=family)
    bos_id, eos_ids = ends_of_text(directory, text)
    return ModelSpec(
        family=family,
        path=str(directory),
        text=text.text_spec(),
        eos_token_ids=eos_ids,
        bos_token_id=bos_id,
        checkpoint_dtype=text.dtype or text.torch_dtype or "float32",
    )


def is_served(config: dict[str, Any]) -> bool:
    """Whether the architecture of this config.json is in the table."""
    names = config.get("architectures") or []
    return str(names[0]) in ARCHITECTURES if names else config.get("model_type") in ARCHITECTURES.values()


def text_config(raw: dict[str, Any], *, default: str) -> TextJson:
    """A text model's config.json, or the ``text_config`` of one. ``default``: its family without ``model_type``."""
    name = str(raw.get("model_type", default))
    if name not in TEXT.values():
        raise StartupError(f"text model {name!r} is not supported; architectures served are {SERVED}")
    return cast(TextJson, convert(raw, _module(name).Config))


def _family(config: dict[str, Any]) -> str:
    """By architecture, or by ``model_type`` where none is named."""
    names, kind = config.get("architectures") or [], config.get("model_type")
    if not names and kind in ARCHITECTURES.values():
        return str(kind)
    name = str(names[0]) if names else f"{kind or 'an unnamed architecture'}"
    if name not in ARCHITECTURES:
        raise StartupError(f"{name} is not supported; architectures served are {SERVED}")
    return ARCHITECTURES[name]


def module_name(family: str) -> str:
    """Of the module that reads config.json for a family."""
    kind = "text" if family in TEXT.values() else "vision"
    return f"mmserve.checkpoint.families.{kind}.{family}"


def _module(family: str) -> Any:
    return import_module(module_name(family))
