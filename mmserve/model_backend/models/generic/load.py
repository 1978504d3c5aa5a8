"""Loads a model of transformers with its weights, and lets it show that it computes what transformers computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from mmserve.checkpoint.files import weight_files
from mmserve.checkpoint.spec import ModelSpec
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.models.generic import attention, self_test
from mmserve.model_backend.models.generic.architecture import architecture_of
from mmserve.model_backend.models.generic.decoder import GenericDecoder
from mmserve.runtime.errors import StartupError

_NAMES_SHOWN = 3


def load(
    spec: ModelSpec,
    backend: AttentionBackend[Any],
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[int, int, str], None],
) -> GenericDecoder:
    """The whole model on one device. Raises StartupError if weights are missing or the self-test fails."""
    total_nbytes = sum(file.stat().st_size for file in weight_files(Path(spec.path)))
    progress(0, total_nbytes, "bytes")
    model = _with_weights(Path(spec.path), dtype).to(device)
    progress(total_nbytes, total_nbytes, "bytes")
    decoder = GenericDecoder(model, spec.text, backend)
    self_test.check(decoder, spec.text, backend, dtype, device)
    return decoder


def _with_weights(directory: Path, dtype: torch.dtype) -> Any:
    """transformers invents weights that a checkpoint lacks, so that what it reports must be checked."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model, report = architecture_of(directory).model_class.from_pretrained(
        directory,
        dtype=dtype,
        attn_implementation=attention.NAME,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
    )
    for found, what in ((report["missing_keys"], "lacks"), (report["mismatched_keys"], "has the wrong shape for")):
        if found:
            names = sorted(str(name) for name in found)
            shown = ", ".join(names[:_NAMES_SHOWN])
            raise StartupError(f"{directory} {what} {len(names)} tensors of its model: {shown}")
    return model.eval().requires_grad_(False)
