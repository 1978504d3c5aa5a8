"""Loads a model of transformers with its weights, and lets it show that it computes what transformers computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from mmserve.checkpoint.files import weight_files
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.models.generic import attention, self_test
from mmserve.model_backend.models.generic.architecture import architecture_of
from mmserve.model_backend.models.generic.decoder import GenericDecoder
from mmserve.model_backend.models.generic.tower import GenericTower
from mmserve.runtime.errors import StartupError

Progress = Callable[[int, int, str], None]
"""(done, total, unit)"""
_NAMES_SHOWN = 3


def load_decoder(
    spec: ModelSpec,
    backend: AttentionBackend[Any],
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress,
) -> GenericDecoder:
    """The whole language model on one device. Raises StartupError if weights are missing or the self-test fails."""
    model = _with_weights(spec, dtype, progress, attn_implementation=attention.NAME)
    if spec.vision is not None:
        _keep(model.base_model, model.get_decoder())
    decoder = GenericDecoder(model.to(device), spec.text, backend)
    self_test.check(decoder, spec.text, backend, dtype, device)
    return decoder


def load_tower(spec: ModelSpec, dtype: torch.dtype, device: torch.device, progress: Progress) -> GenericTower:
    """The vision tower with what is between it and the language model. Raises StartupError if weights are missing.

    The language model is loaded too, and freed.
    """
    assert isinstance(spec.vision, GenericVision)
    assert spec.image_token_id is not None
    model = _with_weights(spec, dtype, progress)
    text, base = model.get_decoder(), model.base_model
    _keep(base, *(part for part in base.children() if part is not text))
    processor = transformers.AutoProcessor.from_pretrained(spec.path, trust_remote_code=False, local_files_only=True)
    return GenericTower(base.to(device), processor, spec.vision, spec.image_token_id)


def _keep(base: Any, *parts: Any) -> None:
    """Free the other parts of a model."""
    for name, part in list(base.named_children()):
        if not any(part is kept for kept in parts):
            setattr(base, name, None)


def _with_weights(spec: ModelSpec, dtype: torch.dtype, progress: Progress, **options: str) -> Any:
    """transformers invents weights that a checkpoint lacks, so that what it reports must be checked."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    directory = Path(spec.path)
    total_nbytes = sum(file.stat().st_size for file in weight_files(directory))
    progress(0, total_nbytes, "bytes")
    model, report = architecture_of(directory).model_class.from_pretrained(
        directory,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        **options,
    )
    for found, what in ((report["missing_keys"], "lacks"), (report["mismatched_keys"], "has the wrong shape for")):
        if found:
            names = sorted(str(name) for name in found)
            shown = ", ".join(names[:_NAMES_SHOWN])
            raise StartupError(f"{directory} {what} {len(names)} tensors of its model: {shown}")
    progress(total_nbytes, total_nbytes, "bytes")
    return model.eval().requires_grad_(False)
