"""Models of published shapes with random weights, made on the device."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from benchmarks.gpu.checks import Settings
from benchmarks.gpu.models.shapes import Shape
from benchmarks.gpu.rates.device import device_of
from mmserve.checkpoint.load import load
from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.fields import Quantization
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import LayerFinisher
from mmserve.model_backend.layers.linear_method import LinearMethod, LinearShape
from mmserve.model_backend.layers.target import Targets
from mmserve.model_backend.loader.registry import family_of
from mmserve.model_backend.models.interface import DecoderModel
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.vision.interface import Tower

_STANDARD_DEVIATION = 0.02
Weights = Literal["plain", "FP8", "FP8 in blocks"]
"""Of the layers; in FP8 they are made at start, or as a checkpoint has them, with a scale for each block."""
_IN_BLOCKS = QuantizationScheme(method="FP8", layout="fp8", bits=8, block=(128, 128), float8_inputs=True)


def spec_of(shape: Shape) -> ModelSpec:
    """As it is read from a checkpoint directory that has no weights."""
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / "config.json").write_text(json.dumps(shape.config))
        return load(Path(made), weights=False)


def fill(targets: Targets, modules: Any, generator: torch.Generator) -> None:
    """Random numbers for every parameter, as small as trained ones; norms near one."""
    finisher = LayerFinisher(modules)
    with torch.inference_mode():
        for name, target in targets.items():
            if target is not None:
                # On the device, also where a matrix that is converted later is on the host.
                is_fp8 = target.into.dtype is torch.float8_e4m3fn
                dtype = torch.bfloat16 if is_fp8 else target.into.dtype
                numbers = torch.empty(target.into.shape, dtype=dtype, device=generator.device)
                numbers.normal_(0.0, 1.0 if is_fp8 else _STANDARD_DEVIATION, generator=generator)
                if name.endswith(".weight_scale"):
                    numbers.fill_(_STANDARD_DEVIATION)
                elif numbers.dim() == 1 and name.endswith("weight"):
                    numbers.add_(1.0)
                target.into.copy_(numbers.to(target.into.dtype))
                finisher.loaded(name)


def _in_blocks(platform: Platform, context: LayerContext, shape: LinearShape) -> LinearMethod:
    return platform.checkpoint_linear_method(_IN_BLOCKS, shape) if shape.quantizable else context.linear_method(shape)


def random_decoder(
    weights: Weights,
    generator: torch.Generator,
    model: ModelSpec,
    platform: Platform,
    attention: AttentionBackend[Any],
    tp: TpGroup,
    quantization: Quantization,
    *_: object,
) -> DecoderModel:
    """With these two in front of its arguments, in place of ``load_decoder``."""
    context = platform.layer_context(tp, quantization)
    if weights == "FP8 in blocks":
        context = replace(context, linear_method=partial(_in_blocks, platform, context))
    decoder = family_of(model.family).decoder(model.text, attention, context)
    fill(decoder.targets(), decoder.modules(), generator)
    return decoder


def random_tower(shape: Shape, settings: Settings) -> Tower:
    """The vision tower of a shape, in bfloat16 on a GPU."""
    device = device_of(settings)
    platform, spec = platform_for(device.type, "bfloat16" if device.type == "cuda" else "float32"), spec_of(shape)
    family = family_of(spec.family)
    assert family.tower is not None, "a text model"
    tower = family.tower(spec.vision, spec.text.hidden_size, platform.layer_context(TpGroup()))
    fill(tower.targets(), tower.modules(), torch.Generator(device).manual_seed(settings.seed))
    return tower
