"""Counts the parameters of a model from its spec, without weights: its modules are made without memory for numbers.

A program, so that its caller does not import torch: reads a ModelSpec as JSON, prints the numbers of the language model
and of the vision tower with its projector. ``python -m mmserve.model_backend.loader.count_parameters < spec.json``
"""

from __future__ import annotations

import math
import sys

import msgspec

from mmserve.checkpoint.config.rope_config import for_context
from mmserve.checkpoint.spec import ModelSpec
from mmserve.model_backend.attention.interface import AttentionSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.target import Targets
from mmserve.model_backend.loader.registry import family_of
from mmserve.model_backend.platforms.device import shapes_alone


def count(model: ModelSpec) -> tuple[int, int]:
    """(language model, tower and projector). A head that is the embedding counts once. Raises StartupError."""
    family, text = family_of(model.family), for_context(model.text, model.text.max_position)
    platform = shapes_alone()
    attention = platform.attention(AttentionSpec.of(text, TpGroup()), platform.dtype)
    context = platform.layer_context(TpGroup())
    in_text = _numbers(family.decoder(text, attention, context).targets())
    if model.vision is None or family.tower is None:
        return in_text, 0
    return in_text, _numbers(family.tower(model.vision, text.hidden_size, context).targets())


def _numbers(targets: Targets) -> int:
    return sum(math.prod(target.shape) for target in targets.values() if target is not None)


if __name__ == "__main__":
    print(*count(msgspec.json.decode(sys.stdin.buffer.read(), type=ModelSpec)))
