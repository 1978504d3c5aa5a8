"""What a checkpoint is to transformers: a config and the class that computes it. Code in a checkpoint is never run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from mmserve.checkpoint.files import read_json
from mmserve.runtime.errors import StartupError

_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
_BATCH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""transformers chooses their frequencies by the longest position of a batch, which holds other sequences too."""


class Architecture(NamedTuple):
    """Objects of transformers. ``text``: the part of ``config`` that describes the language model."""

    config: Any
    text: Any
    model_class: Any
    takes_pictures: bool


def architecture_of(directory: Path) -> Architecture:
    """Raises StartupError with the reason why mmserve cannot serve a checkpoint through transformers."""
    model_type = (read_json(directory / "config.json") or {}).get("model_type")
    if model_type not in CONFIG_MAPPING:
        raise StartupError(
            f"transformers {transformers.__version__} has no model type {model_type!r}, and code from a checkpoint is "
            "never run"
        )
    config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    if config.is_encoder_decoder:
        raise StartupError(f"{model_type} has an encoder and a decoder; mmserve serves decoders")
    text = config.get_text_config(decoder=True)
    found = Architecture(config, text, *_model_class(config))
    _check_layers(found)
    return found


def _model_class(config: Any) -> tuple[Any, bool]:
    """The class that config.json names, and whether it takes pictures. Raises StartupError for other kinds."""
    named = next(iter(config.architectures or []), None)
    for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING):
        found = mapping.get(type(config), None)
        for model_class in found if isinstance(found, tuple) else (found,):
            if model_class is not None and named in (None, model_class.__name__):
                return model_class, hasattr(config, "vision_config")
    raise StartupError(f"{named or config.model_type} is not a language model that continues a text")


def _check_layers(architecture: Architecture) -> None:
    """Refuse what shows in the class and the config. ``probe`` finds the rest."""
    text, name = architecture.text, architecture.model_class.__name__
    if architecture.model_class._is_stateful:
        raise StartupError(f"{name} keeps a recurrent state for each sequence, which the KV cache cannot hold")
    if unknown := sorted(set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES):
        raise StartupError(f"{name} has layers of the type {unknown[0]!r}; supported are full and sliding attention")
    if found := sorted(_BATCH_DEPENDENT_ROPE.intersection(_rope_types(getattr(text, "rope_parameters", None)))):
        raise StartupError(f"rope type {found[0]!r} depends on the other sequences of a step")


def _rope_types(parameters: object) -> Iterator[str]:
    """``rope_type`` of the parameters, or of those of each type of layer."""
    if isinstance(parameters, Mapping):
        yield str(parameters.get("rope_type", "default"))
        for nested in parameters.values():
            yield from _rope_types(nested) if isinstance(nested, Mapping) else ()
