"""What a model is, from its config.json, and the memory that it takes: the one owner of that for every command.

The bytes of its weights are from their files' headers or counted. What a running server takes is decided by
``supervisor.startup.plan``, whose functions are used here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from mmserve.checkpoint.files import has_weights
from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.config.fields import ModelImpl, Quantization
from mmserve.config.resolved.deployment import DTYPE_BYTES, Dtype, KvDtype, embed_row_nbytes
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.startup import plan
from mmserve.supervisor.startup.find_model import read_model
from mmserve.supervisor.startup.weight_memory import PartBytes, part_nbytes, quantized_nbytes

_COUNTER = "mmserve.model_backend.loader.count_parameters"


DTYPES: tuple[Dtype, ...] = ("bfloat16", "float32")


class ModelFacts(NamedTuple):
    """``parts``: bytes of the weights by dtype. ``is_counted``: from config.json, as there are no weight files."""

    model: ModelSpec
    parts: dict[Dtype, PartBytes]
    is_counted: bool

    def weights(self, dtype: Dtype, quantization: Quantization = "none") -> PartBytes:
        """In memory. ``quantization``: of the server; one of the checkpoint itself is a part of ``parts``."""
        stored = self.parts["bfloat16" if dtype == "float16" else dtype]  # as many bytes
        whole = quantized_nbytes(self.model, sum(stored), dtype, quantization)
        return PartBytes(whole - stored.tower, stored.tower)

    def kv_token_nbytes(self, tp: int, dtype: KvDtype) -> int:
        """Of a token in the KV cache of one of ``tp`` ranks, with numbers of ``dtype``."""
        return plan.kv_token_nbytes(self.model, tp, DTYPE_BYTES[dtype])

    def picture_nbytes(self, rows: int, dtype: Dtype) -> int:
        """Of the embedding of a picture, with rows of ``dtype``."""
        return rows * embed_row_nbytes(self.model, dtype)

    def arena_nbytes(self, config: Config) -> int:
        """Of the shared memory for pictures and their embeddings."""
        return plan.arena_size(config, self.model)


def read(directory: Path, impl: ModelImpl = "mmserve") -> ModelFacts:
    """``directory`` needs no weights, unless transformers' modules compute the model. Raises StartupError with the
    reason if the model cannot be planned for."""
    if has_weights(directory):
        return of_files(read_model(directory, impl))
    model = load(directory, weights=False)
    if model.quantization is not None:
        raise StartupError(
            f"{directory}: how many bits a quantised checkpoint ({model.quantization}) takes is in the headers of its "
            "weight files, which are not here: download it first"
        )
    text, tower = _count(model)
    parts = {dtype: PartBytes(text * DTYPE_BYTES[dtype], tower * DTYPE_BYTES[dtype]) for dtype in DTYPES}
    return ModelFacts(model, parts, True)


def of_files(model: ModelSpec) -> ModelFacts:
    """From the headers of its weight files. Raises StartupError if one is not readable."""
    parts = {dtype: part_nbytes(model, "float32" if model.quantization else dtype) for dtype in DTYPES}
    return ModelFacts(model, parts, False)


def _count(model: ModelSpec) -> tuple[int, int]:
    """In a child process, because it needs torch."""
    command = [sys.executable, "-m", _COUNTER]
    done = subprocess.run(command, input=msgspec.json.encode(model), capture_output=True, check=False)
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
        raise StartupError(f"the parameters of {model.path} cannot be counted: {last}")
    text, tower = map(int, done.stdout.split()[-2:])
    return text, tower
