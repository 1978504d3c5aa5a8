"""Writes a checkpoint of a published shape with random weights made on the device, for a server to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.checkpoints.shapes import SMALL, write_settings
from benchmarks.checkpoints.tokenizer import VOCAB
from benchmarks.gpu.checks import Settings
from benchmarks.gpu.models.shapes import Shape
from benchmarks.gpu.rates.device import device_of
from mmserve.checkpoint.load import load
from mmserve.model_backend.attention.interface import AttentionSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.registry import family_of
from mmserve.model_backend.platforms.device import shapes_alone

_STANDARD_DEVIATION = 0.02
_SHARD_NBYTES = 2 << 30
_STORED = (("text.lm_head.", "lm_head."), ("text.", "model."), ("vision.", "visual."))
"""(name here, name in the file) of the shapes' families."""
_PICTURES = "Qwen2.5-VL"
"""Its tokenizer, chat template and settings serve all three shapes."""


def write(directory: Path, shape: Shape, settings: Settings) -> Path:
    """A checkpoint with a vocabulary of 49,152, which its tokenizer has. Returns ``directory``."""
    directory.mkdir()
    tokens = write_settings(directory, _PICTURES, SMALL).to_dict()
    (directory / "config.json").write_text(json.dumps(_config(shape, tokens)))
    shapes = _shapes(directory)
    weight_map, device = {}, device_of(settings)
    generator = torch.Generator(device).manual_seed(settings.seed)
    for index, names in enumerate(_shards(shapes)):
        file = f"model-{index:05}.safetensors"
        tensors = {_stored(name): _random(name, shapes[name], device, generator) for name in names}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {"total_size": sum(_nbytes(each) for each in shapes.values())}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def _config(shape: Shape, tokens: dict[str, Any]) -> dict[str, Any]:
    """The shape's, with the ids of the tokenizer."""
    config = json.loads(json.dumps(shape.config))
    for part in (config, config.get("text_config", {})):
        if "vocab_size" in part:
            part["vocab_size"] = VOCAB
        part.update(eos_token_id=tokens["text_config"]["eos_token_id"], bos_token_id=None)
    for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"):
        if name in config:
            config[name] = tokens[name]
    return config  # type: ignore[no-any-return]


def _shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """Of every tensor, by the name that it has here."""
    model = load(directory, weights=False)
    family, platform = family_of(model.family), shapes_alone()
    context = platform.layer_context(TpGroup())
    attention = platform.attention(AttentionSpec.of(model.text, TpGroup()), platform.dtype)
    targets = dict(family.decoder(model.text, attention, context).targets())
    if model.vision is not None and family.tower is not None:
        targets |= family.tower(model.vision, model.text.hidden_size, context).targets()
    return {name: target.shape for name, target in targets.items() if target is not None}


def _shards(shapes: dict[str, tuple[int, ...]]) -> list[list[str]]:
    """Names in files of a size that the device has room for beside a model."""
    found: list[list[str]] = [[]]
    nbytes = 0
    for name, shape in shapes.items():
        size = _nbytes(shape)
        if nbytes + size > _SHARD_NBYTES and found[-1]:
            found.append([])
            nbytes = 0
        found[-1].append(name)
        nbytes += size
    return found


def _nbytes(shape: tuple[int, ...]) -> int:
    return 2 * torch.Size(shape).numel()


def _stored(name: str) -> str:
    before, after = next(pair for pair in _STORED if name.startswith(pair[0]))
    return after + name.removeprefix(before)


def _random(name: str, shape: tuple[int, ...], device: torch.device, generator: torch.Generator) -> torch.Tensor:
    numbers = torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(
        0, _STANDARD_DEVIATION, generator=generator
    )
    return (numbers.add_(1.0) if len(shape) == 1 and name.endswith("weight") else numbers).cpu()
