"""LLaVA: image rows equal transformers' features, and tokens equal its greedy tokens with the rows in the arena."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from mmserve.checkpoint.load import load
from mmserve.ipc.arena import Arena
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.vision.interface import Tower
from tests.fakes.models.checkpoints import IMAGE, TEXT_FAMILIES, make_llava, rename_weights
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows, tiles
from tests.fakes.ranks.engine import Driver, make_runner

SIZES = ((28, 28), (64, 31), (20, 90))
TEXTS = ("USER: <image>what?\n", "USER: <image> and <image> then <image>\nASSISTANT:", "no picture")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(params=["cpu", "reference"])
def platform(request: pytest.FixtureRequest) -> Platform:
    """With the C++ kernels, then torch alone."""
    if request.param == "cpu":
        return platform_for("cpu", "float32")
    return TorchPlatform(torch.device("cpu"), torch.float32)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 20)
    yield made
    made.close()


def picture(index: int) -> Image.Image:
    width, height = SIZES[index % len(SIZES)]
    values = np.random.default_rng(index).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def tower_of(directory: Path, platform: Platform | None = None) -> Tower:
    return load_tower(load(directory), platform or platform_for("cpu", "float32"), lambda done, total, unit: None)


@pytest.mark.parametrize(
    "settings", [{}, {"feature_layer": -1}, {"feature_layer": 2, "strategy": "full"}, {"feature_layer": -3}]
)
def test_rows_equal_the_image_features_of_transformers(
    tmp_path: Path, platform: Platform, settings: dict[str, Any]
) -> None:
    make_llava(tmp_path, **settings)
    pixels = torch.randn(3, 3, 28, 28, generator=torch.manual_seed(1))
    model = transformers.LlavaForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        features = torch.stack(list(model.get_image_features(pixels).pooler_output))
    rows = torch.stack(tower_of(tmp_path, platform)(tiles(pixels)))
    assert rows.shape[1] == load(tmp_path).vision.num_rows  # type: ignore[union-attr]
    torch.testing.assert_close(rows, features, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("chunk", [1000, 7])
def test_tokens_equal_transformers_with_images_of_several_sizes(
    directory: Path, arena: Arena, platform: Platform, chunk: int
) -> None:
    assert_tokens_equal_transformers(directory, arena, platform, chunk)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_other_families_behind_the_tower(tmp_path: Path, arena: Arena, family: str) -> None:
    assert_tokens_equal_transformers(make_llava(tmp_path, family=family), arena, platform_for("cpu", "float32"), 7)


def assert_tokens_equal_transformers(directory: Path, arena: Arena, platform: Platform, chunk: int) -> None:
    model = transformers.LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
    processor = transformers.AutoProcessor.from_pretrained(directory, use_fast=False)
    tower = tower_of(directory, platform)
    driver = Driver(make_runner(directory, arena, platform), chunk=chunk)
    sequences, expected, offset = [], [], 0
    for slot, text in enumerate(TEXTS):
        pictures = [picture(slot + index) for index in range(text.count("<image>"))]
        inputs = processor(text=text, images=pictures or None, return_tensors="pt")
        out = model.generate(**inputs, do_sample=False, max_new_tokens=10, eos_token_id=-1)
        expected.append(out[0, inputs["input_ids"].shape[1] :].tolist())
        handles = []
        for pixels in inputs["pixel_values"] if pictures else ():
            handle, offset = put_rows(arena, tower(tiles(pixels[None]))[0], offset)
            handles.append(handle)
        prompt, spans = prompt_with_images(inputs["input_ids"][0].tolist(), handles, image_id=IMAGE, num_tokens=16)
        sequences.append(driver.add(slot, prompt, spans=spans))
    driver.run(10)
    assert [s.output[:10] for s in sequences] == expected


def test_checkpoints_with_every_naming_of_weights_load(tmp_path: Path) -> None:
    plain = tower_of(make_llava(tmp_path / "saved"))
    pixels = torch.randn(1, 3, 28, 28)
    namings = {
        "classic": (("vision_tower.", "vision_tower.vision_model."),),
        "transformers-5": (
            ("language_model.lm_head.", "lm_head."),
            ("language_model.model.", "model.language_model."),
            ("vision_tower.", "model.vision_tower."),
            ("multi_modal_projector.", "model.multi_modal_projector."),
        ),
    }
    for name, prefixes in namings.items():
        renamed = make_llava(tmp_path / name)
        rename_weights(renamed, *prefixes)
        torch.testing.assert_close(tower_of(renamed)(tiles(pixels)), plain(tiles(pixels)))
        make_runner(renamed).warm_up()
