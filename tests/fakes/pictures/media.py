"""Test pictures, and a checkpoint with a vision tower for tests that load no weights."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmserve.checkpoint.spec import LayerSpec, ModelSpec, TextSpec
from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.process import Process
from mmserve.ipc.arena import Arena
from mmserve.processors.families.llava import LlavaProcessor
from mmserve.processors.interface import Views

IMAGE_SIZE = 28


def picture(width: int = 40, height: int = 30, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """A noisy picture, smooth enough for JPEG."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(2, height // 8), max(2, width // 8), 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height))
    if mode in ("RGBA", "LA"):
        alpha = Image.fromarray(rng.integers(0, 256, (height, width), dtype=np.uint8))
        image = image.convert(mode)
        image.putalpha(alpha)
        return image
    return image.convert(mode)


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    """The picture as a file of this format."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def png(seed: int = 0, width: int = 40, height: int = 30) -> bytes:
    """A small PNG; different seeds give different pictures."""
    return encoded(picture(width, height, seed=seed))


def truncated(data: bytes) -> bytes:
    """The first two thirds of the file: the header is complete, the pixels are not."""
    return data[: len(data) * 2 // 3]


def vision_spec(image_size: int = IMAGE_SIZE) -> ClipVision:
    """The spec of a tiny CLIP tower."""
    return ClipVision(
        image_size=image_size,
        patch_size=14,
        hidden_size=8,
        intermediate_size=16,
        num_layers=2,
        num_heads=2,
        layer_norm_eps=1e-5,
        activation="quick_gelu",
        feature_layer=-2,
        select_strategy="default",
        projector_activation="gelu",
        projector_bias=True,
    )


def model_spec(path: Path, *, hidden_size: int = 8, vision: ClipVision | None = None) -> ModelSpec:
    """The spec of a tiny LLaVA without weights."""
    text = TextSpec(
        hidden_size=hidden_size,
        intermediate_size=16,
        layers=(LayerSpec(),),
        num_heads=2,
        num_kv_heads=2,
        head_dim=hidden_size // 2,
        vocab_size=64,
        max_position=512,
        rms_eps=1e-5,
    )
    return ModelSpec(family="llava", path=str(path), text=text, vision=vision or vision_spec(), image_token_id=3)


COUNTED = GenericVision(
    hidden_size=8,
    intermediate_size=16,
    num_layers=2,
    num_heads=2,
    patch_size=14,
    activation="gelu",
    layer_norm_eps=1e-5,
    patches_per_row=1,
    placeholder="<image>",
    expansion="<begin><image><end>",
    rows=(),
    max_rows=100,
)
"""Of a tower of transformers whose pictures have rows by their size."""


def one_tile(value: int, *, tiles: int = 1) -> Views:
    """The views of a picture whose tower reads one tile, or so many, all of whose bytes are ``value``."""
    return Views(np.full((tiles, 2, 2, 3), value, np.uint8), np.ones((1, 3), np.int32))


def llava_processor(directory: Path) -> LlavaProcessor:
    """Of the tiny LLaVA, with the settings in ``directory``."""
    return LlavaProcessor(model_spec(directory))


def write_preprocessor(directory: Path, image_size: int = IMAGE_SIZE, **changes: Any) -> Path:
    """Write a preprocessor_config.json as transformers does, with ``changes``."""
    settings = {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": image_size},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": image_size, "width": image_size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "do_pad": None,
        **changes,
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    return directory


def fake_process(role: str, run_dir: Path, arena: Arena, model: ModelSpec, **config: Any) -> Process:
    """The Process that the supervisor gives to the first process of a role. ``config``: fields of Config."""
    deployment = Deployment(
        config=Config(**config),
        model=model,
        served_name="llava",
        device="cpu",
        dtype="float32",
        max_model_len=512,
        kv_tokens=8 * 16,
        arena_nbytes=arena.nbytes,
        run_dir=str(run_dir),
        hash_seed=1,
        url="",
        version="0",
    )
    return Process(deployment=deployment, role=role, index=0, ready=lambda details: None, arena=arena)
