"""Describes a checkpoint that transformers can compute, as a ModelSpec.

As a program, ``python -m mmserve.model_backend.models.generic.describe DIRECTORY`` prints it as JSON, or prints the
reason why the model cannot be served and ends with 1. The supervisor runs it, because importing transformers and torch
takes seconds and hundreds of megabytes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import transformers

from mmserve.checkpoint.config.stop_tokens import ends_of_text
from mmserve.checkpoint.config.text_config import TextJson
from mmserve.checkpoint.spec import LayerSpec, ModelSpec, TextSpec
from mmserve.model_backend.models.generic.architecture import architecture_of
from mmserve.model_backend.models.generic.pictures import pictures_of
from mmserve.model_backend.models.generic.probe import Probed, probe
from mmserve.runtime.errors import StartupError


def describe(directory: Path) -> ModelSpec:
    """Raises StartupError with the reason if mmserve cannot serve this checkpoint through transformers."""
    architecture = architecture_of(directory)
    config, text = architecture.config, architecture.text
    max_position = getattr(text, "max_position_embeddings", None)
    if not isinstance(max_position, int) or max_position < 1:
        raise StartupError(f"the config of {config.model_type} does not tell the longest context")
    probed = probe(architecture, max_position)
    ends = TextJson(bos_token_id=text.bos_token_id, eos_token_id=text.eos_token_id)
    bos_id, eos_ids = ends_of_text(directory, ends)
    vision = token = None
    if architecture.takes_pictures:
        vision, token = pictures_of(directory, architecture, probed.base)
    return ModelSpec(
        family="transformers",
        path=str(directory),
        text=_text_spec(text, probed, max_position),
        vision=vision,
        image_token_id=None if token is None else token.id,
        image_token="" if token is None else token.text,
        eos_token_ids=eos_ids,
        bos_token_id=bos_id,
        checkpoint_dtype=str(config.dtype or "float32").removeprefix("torch."),
    )


def _text_spec(text: Any, probed: Probed, max_position: int) -> TextSpec:
    """Fields that only the decoder of ``models/decoder.py`` reads keep their defaults."""
    first = probed.layers[0]
    inner = getattr(text, "intermediate_size", None)
    return TextSpec(
        hidden_size=probed.hidden_size,
        intermediate_size=inner if isinstance(inner, int) else 4 * probed.hidden_size,
        layers=tuple(LayerSpec(rope=None, window=layer.window) for layer in probed.layers),
        num_heads=first.num_heads,
        num_kv_heads=first.num_kv_heads,
        head_dim=first.head_dim,
        vocab_size=probed.vocab_size,
        max_position=max_position,
        rms_eps=0.0,
        tie_embeddings=bool(text.tie_word_embeddings),
        attention_scale=first.scale,
    )


def main(directory: str) -> int:
    """The exit code."""
    transformers.logging.set_verbosity_error()
    try:
        print(msgspec.json.encode(describe(Path(directory))).decode())
    except StartupError as error:
        print(error)
        return 1
    except Exception as error:  # noqa: BLE001 - a process boundary: the modules of any architecture run here
        reason = (str(error).strip() or "no message").splitlines()[0]
        print(f"its modules do not run without weights ({type(error).__name__}: {reason})")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
