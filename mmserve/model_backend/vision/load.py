"""Checkpoint -> vision tower, for the visual server."""

from __future__ import annotations

import torch

from mmserve.checkpoint.spec import ModelSpec
from mmserve.model_backend.layers.linear import pack_linears
from mmserve.model_backend.loader import weights
from mmserve.model_backend.loader.weights import Progress
from mmserve.model_backend.vision.clip import VisionTower, num_layers_needed
from mmserve.runtime.errors import StartupError


def load_tower(model: ModelSpec, device: torch.device, dtype: torch.dtype, progress: Progress) -> VisionTower:
    """The model's tower and projector, ready to run. Raises StartupError (no vision, or a tensor that is wrong)."""
    spec = model.vision
    if spec is None:
        raise StartupError(f"{model.path} is a text model: it has no vision tower")
    if not 0 <= num_layers_needed(spec) <= spec.num_layers:
        raise StartupError(f"vision_feature_layer {spec.feature_layer} is not within {spec.num_layers} layers")
    tower = VisionTower(spec, model.text.hidden_size, like=torch.empty(0, dtype=dtype, device=device))
    weights.load(model.path, ("vision.", "projector."), tower.targets(), progress)
    pack_linears(tower)
    return tower
