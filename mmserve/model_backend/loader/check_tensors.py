"""Whether a checkpoint has the tensors of its model, by names, shapes and dtypes. The tensors are not read.

As a program, ``python -m mmserve.model_backend.loader.check_tensors DIRECTORY`` prints the first that is wrong and ends
with 1. ``mmserve models`` runs it, because importing torch takes seconds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from msgspec.structs import replace

from mmserve.checkpoint.config.rope_config import for_context
from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import ModelSpec
from mmserve.model_backend.attention.interface import AttentionSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.load import load_decoder, load_tower
from mmserve.model_backend.platforms.device import shapes_alone
from mmserve.runtime.errors import StartupError


def check_tensors(model: ModelSpec) -> None:
    """Raises StartupError that names a tensor. ``model``: of mmserve's own code, not quantized."""
    model = replace(model, text=for_context(model.text, model.text.max_position))
    platform = shapes_alone()
    attention = platform.attention(AttentionSpec.of(model.text, TpGroup()), platform.dtype)
    load_decoder(model, platform, attention, TpGroup(), "none", _ignore)
    if model.vision is not None:
        load_tower(model, platform, _ignore)


def _ignore(done: int, total: int, unit: str) -> None:
    """Nothing is read, so that there is no progress to report."""


def main(directory: str) -> int:
    """The exit code."""
    try:
        check_tensors(load(Path(directory)))
    except StartupError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
