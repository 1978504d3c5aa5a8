"""Checkpoint -> the decoder of a rank, or the vision tower of a visual server, ready to run."""

from __future__ import annotations

from typing import Any

from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.fields import Quantization
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.linear import LayerFinisher
from mmserve.model_backend.loader import weights
from mmserve.model_backend.loader.quantized import QuantizedCheckpoint
from mmserve.model_backend.loader.registry import family_of
from mmserve.model_backend.loader.weights import Progress
from mmserve.model_backend.models.interface import DecoderModel
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.vision.interface import Tower
from mmserve.runtime.errors import StartupError


def load_decoder(
    model: ModelSpec,
    platform: Platform,
    attention: AttentionBackend[Any],
    tp: TpGroup,
    quantization: Quantization,
    progress: Progress,
) -> DecoderModel:
    """This rank's part of the language model. Raises StartupError (a tensor that is wrong, a shape not supported)."""
    if model.family == "transformers":
        # Imported here: transformers is an optional package, and slow to import.
        from mmserve.model_backend.models.generic import load as generic

        return generic.load_decoder(model, attention, platform.dtype, platform.device, progress)
    family = family_of(model.family)
    checkpoint = QuantizedCheckpoint(model)
    context = checkpoint.context(platform.layer_context(tp, quantization), platform)
    decoder = family.decoder(model.text, attention, context)
    finisher = LayerFinisher(decoder.modules())
    weights.load(
        model.path,
        ("text.",),
        checkpoint.canonical_name,
        decoder.targets(),
        progress,
        finisher.loaded,
        platform.weight_copies(),
    )
    return decoder


def load_tower(model: ModelSpec, platform: Platform, progress: Progress) -> Tower:
    """The model's tower and projector. Raises StartupError (no vision, or a tensor that is wrong)."""
    if model.family == "transformers":
        # Imported here, as above.
        from mmserve.model_backend.models.generic import load as generic

        return generic.load_tower(model, platform.dtype, platform.device, progress)
    spec, family = model.vision, family_of(model.family)
    if spec is None or family.tower is None:
        raise StartupError(f"{model.path} is a text model: it has no vision tower")
    checkpoint = QuantizedCheckpoint(model)
    context = checkpoint.context(platform.layer_context(TpGroup()), platform)
    tower = family.tower(spec, model.text.hidden_size, context)
    finisher = LayerFinisher(tower.modules())
    namespaces, copy = ("vision.", "projector."), platform.weight_copies()
    weights.load(model.path, namespaces, checkpoint.canonical_name, tower.targets(), progress, finisher.loaded, copy)
    return tower
