"""Rows of the Qwen towers equal transformers' image features, alone and together with pictures of other sizes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace

from mmserve.checkpoint.load import load
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.loader.registry import family_of
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.vision.interface import Tower, ViewTensors
from mmserve.model_backend.vision.parts import patch_grids
from tests.fakes.models.checkpoints import rename_weights
from tests.fakes.models.qwen_vl import make_qwen_vl, random_pictures

GRIDS = ((1, 6, 10), (1, 2, 2), (1, 4, 14), (2, 10, 6))
FAMILIES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"]
Directories = dict[str, Path]


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Directories:
    return {family: make_qwen_vl(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


def pictures(directory: Path) -> list[ViewTensors]:
    return random_pictures(load(directory), GRIDS)


def features(directory: Path, views: list[ViewTensors]) -> list[torch.Tensor]:
    """Of transformers, with DeepStack's beside them."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    grids = torch.cat([view.grids for view in views]).long()
    with torch.inference_mode():
        found = model.get_image_features(torch.cat([view.values for view in views]), grids)
    streams = [found.pooler_output, *(getattr(found, "deepstack_features", None) or [])]
    return [torch.cat(parts, dim=1) for parts in zip(*streams, strict=True)]


def tower_of(directory: Path, platform: Platform | None = None, **changes: Any) -> Tower:
    """``changes``: of the tower's spec."""
    model = load(directory)
    changed = replace(model, vision=replace(model.vision, **changes))  # type: ignore[type-var]
    return load_tower(changed, platform or platform_for("cpu", "float32"), lambda done, total, unit: None)


def difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest, relative to the largest number."""
    rows, expected_rows = torch.cat(found).float(), torch.cat(expected)
    return float((rows - expected_rows).abs().max() / expected_rows.abs().max())


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_equal_the_image_features_of_transformers(directories: Directories, family: str) -> None:
    directory = directories[family]
    views, tower = pictures(directory), tower_of(directory)
    expected, found = features(directory, views), tower(views)
    assert [rows.shape for rows in found] == [rows.shape for rows in expected]
    assert difference(found, expected) < 1e-5
    for view, rows in zip(views, found, strict=True):
        assert torch.equal(tower([view])[0], rows)
    reference = TorchPlatform(torch.device("cpu"), torch.float32)
    assert difference(tower_of(directory, reference)(views), expected) < 1e-5
    assert difference(tower_of(directory, platform_for("cpu", "bfloat16"))(views), expected) < 0.05


@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_the_hub_and_of_transformers_5(tmp_path: Path, directories: Directories, family: str) -> None:
    renamed = shutil.copytree(directories[family], tmp_path / "renamed")
    if family.startswith("qwen3_vl"):
        rename_weights(renamed, ("model.visual.", "visual."), ("model.language_model.", "model."))
    else:
        rename_weights(renamed, ("visual.", "model.visual."), ("model.", "model.language_model."))
    views = pictures(renamed)
    assert difference(tower_of(renamed)(views), tower_of(directories[family])(views)) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tower_computes_on_its_device(directories: Directories, family: str) -> None:
    """Shapes only: the meta device refuses tensors in host memory, as a GPU does."""
    model, meta = load(directories[family]), TorchPlatform(torch.device("meta"), torch.bfloat16)
    tower = family_of(family).tower
    assert tower is not None
    assert model.vision is not None
    rows = tower(model.vision, model.text.hidden_size, meta.layer_context(TpGroup()))(pictures(directories[family]))
    assert [each.shape for each in rows] == [(prod(grid) // 4, 64 * model.vision.streams) for grid in GRIDS]
    assert all(each.is_meta for each in rows)


def by_rows(grids: Sequence[patch_grids.Grid], merge: int) -> torch.Tensor:
    places = [torch.cartesian_prod(torch.arange(h), torch.arange(w)).repeat(t, 1) for t, h, w in grids]
    return torch.cat(places)


def all_frames(grids: Sequence[patch_grids.Grid]) -> list[int]:
    return [prod(grid) for grid in grids]


def by_half_pixels(table: torch.Tensor, grids: Sequence[patch_grids.Grid], merge: int) -> torch.Tensor:
    """As ``resampled``, with pixels' corners where it has their centres."""
    parts = []
    for t, h, w in grids:
        square = table.permute(2, 0, 1)[None]
        found = torch.nn.functional.interpolate(square, (h, w), mode="bilinear", align_corners=False)[0]
        squares = found.view(-1, h // merge, merge, w // merge, merge).permute(1, 3, 2, 4, 0)
        parts.append(squares.reshape(h * w, -1).repeat(t, 1))
    return torch.cat(parts)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("qwen2_vl", {"num_heads": 4}),
        ("qwen2_vl", {"activation": "gelu"}),
        ("qwen2_5_vl", {"full_attention_layers": (0,)}),
        ("qwen2_5_vl", {"window_size": 84}),
        ("qwen3_vl", {"deepstack_layers": (0, 2)}),
    ],
    ids=str,
)
def test_rows_show_a_wrong_option(directories: Directories, family: str, change: dict[str, Any]) -> None:
    directory = directories[family]
    views = pictures(directory)
    assert difference(tower_of(directory, **change)(views), tower_of(directory)(views)) > 1e-3


@pytest.mark.parametrize(
    ("family", "name", "replacement"),
    [
        ("qwen2_vl", "patch_positions", by_rows),
        ("qwen2_vl", "frame_lengths", all_frames),
        ("qwen3_vl", "resampled", by_half_pixels),
    ],
)
def test_rows_show_a_wrong_grid(
    directories: Directories,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    name: str,
    replacement: Callable[..., Any],
) -> None:
    directory = directories[family]
    views, tower = pictures(directory), tower_of(directory)
    expected = tower(views)
    monkeypatch.setattr(patch_grids, name, replacement)
    assert difference(tower(views), expected) > 1e-3
