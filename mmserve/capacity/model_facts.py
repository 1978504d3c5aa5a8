"""What a model is, from its config.json, and the bytes of its weights, from their files' headers or by counting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from mmserve.checkpoint.files import has_weights
from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.deployment import DTYPE_BYTES, Dtype
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.startup.weight_memory import PartBytes, part_nbytes

_COUNTER = "mmserve.model_backend.loader.count_parameters"


class ModelFacts(NamedTuple):
    """``parts``: bytes of the weights by dtype. ``is_counted``: from config.json, as there are no weight files."""

    model: ModelSpec
    parts: dict[Dtype, PartBytes]
    is_counted: bool


def read(directory: Path) -> ModelFacts:
    """``directory`` needs no weights. Raises StartupError with the reason if the model cannot be planned for."""
    if has_weights(directory):
        model = load(directory)
        dtypes: tuple[Dtype, ...] = ("bfloat16", "float32")
        parts = {dtype: part_nbytes(model, "float32" if model.quantization else dtype) for dtype in dtypes}
        return ModelFacts(model, parts, False)
    model = load(directory, weights=False)
    if model.quantization is not None:
        raise StartupError(
            f"{directory}: how many bits a quantised checkpoint ({model.quantization}) takes is in the headers of its "
            "weight files, which are not here: download it first"
        )
    text, tower = _count(model)
    counted: dict[Dtype, PartBytes] = {
        "bfloat16": PartBytes(text * DTYPE_BYTES["bfloat16"], tower * DTYPE_BYTES["bfloat16"]),
        "float32": PartBytes(text * DTYPE_BYTES["float32"], tower * DTYPE_BYTES["float32"]),
    }
    return ModelFacts(model, counted, True)


def _count(model: ModelSpec) -> tuple[int, int]:
    """In a child process, because it needs torch."""
    command = [sys.executable, "-m", _COUNTER]
    done = subprocess.run(command, input=msgspec.json.encode(model), capture_output=True, check=False)
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        raise StartupError(f"the parameters of {model.path} cannot be counted: {last}")
    text, tower = map(int, done.stdout.split()[-2:])
    return text, tower
