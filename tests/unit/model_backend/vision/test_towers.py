"""Towers of vision-language families give the image features of transformers, whatever is in their batch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mmserve.checkpoint.load import load
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.vision.interface import Tower, ViewTensors
from mmserve.model_backend.vision.parts.tiles import patches_of
from mmserve.runtime.errors import StartupError
from mmserve.visualserver.batches.pace import Pace
from mmserve.visualserver.batches.slices import Slices
from tests.fakes.devices.torch_products import TorchProducts
from tests.fakes.models.checkpoints import rename_weights
from tests.fakes.models.vision_checkpoints import IMAGE, make_native_internvl, make_vision
from tests.unit.model_backend.platforms.cpu.kernels import needs_compiler

Grid = tuple[int, int, int]
Features = Callable[[Any, ViewTensors], torch.Tensor]


@dataclass(frozen=True)
class Case:
    family: str
    changes: dict[str, Any]
    pictures: Sequence[tuple[tuple[int, ...], Sequence[Grid]]]
    """Shape of the values and the grids of each picture."""
    features: Features
    """(model of transformers, picture) -> its rows."""


def tiles(model: Any, picture: ViewTensors) -> torch.Tensor:
    return torch.cat(list(model.get_image_features(picture.values).pooler_output))


def pixtral(model: Any, picture: ViewTensors) -> torch.Tensor:
    height, width = (14 * int(side) for side in picture.grids[0, 1:])
    rows = picture.values.view(height // 14, width // 14, 3, 14, 14).permute(2, 0, 3, 1, 4)
    pixels = rows.reshape(1, 3, height, width)
    assert torch.equal(patches_of(pixels, 14), picture.values)
    found = model.get_image_features(pixels, image_sizes=torch.tensor([[height, width]])).pooler_output
    return found[0].reshape(-1, found[0].shape[-1])


def paddleocr(model: Any, picture: ViewTensors) -> torch.Tensor:
    patches = picture.values.view(-1, 3, 14, 14)
    return model.get_image_features(patches, image_grid_thw=picture.grids.long()).pooler_output[0]


def anyres(*sizes: tuple[int, int]) -> Features:
    """``sizes``: (height, width) of the pictures, found by their grids."""

    def features(model: Any, picture: ViewTensors) -> torch.Tensor:
        size = dict(zip(ANYRES_TILES, sizes, strict=True))[tuple(picture.grids[0, 1:].tolist())]
        return model.get_image_features(picture.values[None], image_sizes=torch.tensor([size])).pooler_output[0]

    return features


TILES = [((1, 3, 56, 56), [(1, 1, 1)]), ((5, 3, 56, 56), [(1, 2, 2)]), ((2, 3, 56, 56), [(1, 1, 2)])]
PATCHES = [((rows * columns, 588), [(1, rows, columns)]) for rows, columns in ((4, 6), (2, 4), (6, 2))]
ANYRES_TILES, ANYRES_SIZES = ((1, 2), (2, 2), (2, 1)), ((30, 60), (50, 60), (61, 21))
ANYRES = [
    ((3, 3, 28, 28), [(1, 1, 2), (1, 4, 8)]),
    ((5, 3, 28, 28), [(1, 2, 2), (1, 6, 8)]),
    ((3, 3, 28, 28), [(1, 2, 1), (1, 8, 2)]),
]
RESAMPLED = [
    (shape, [*grids, size]) for (shape, grids), size in zip(ANYRES, [(1, 4, 8), (1, 4, 6), (1, 8, 2)], strict=True)
]
INTERN_6B = {"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False}
CASES = {
    "internvl": Case("internvl", {}, TILES, tiles),
    "internvl, 6B": Case(
        "internvl", {"norm_type": "rms_norm", "use_qk_norm": True, "attention_bias": False}, TILES, tiles
    ),
    "mistral3": Case("mistral3", {}, PATCHES, pixtral),
    "mistral3, bias": Case("mistral3", {"multimodal_projector_bias": True}, PATCHES, pixtral),
    "pixtral": Case("pixtral", {}, PATCHES, pixtral),
    "gemma3": Case("gemma3", {}, TILES, tiles),
    "paddleocr_vl": Case("paddleocr_vl", {}, PATCHES, paddleocr),
    "llava_next": Case("llava_next", {}, ANYRES, anyres(*ANYRES_SIZES)),
    "llava_onevision": Case("llava_onevision", {}, RESAMPLED, anyres(*ANYRES_SIZES)),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def directory(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision(tmp_path_factory.mktemp("vision"), case.family, **case.changes)


@pytest.fixture(scope="module")
def pictures(case: Case) -> list[ViewTensors]:
    random = torch.manual_seed(3)
    return [
        ViewTensors(torch.randn(*shape, generator=random), torch.tensor(grids, dtype=torch.int32))
        for shape, grids in case.pictures
    ]


@pytest.fixture(scope="module")
def expected(case: Case, directory: Path, pictures: list[ViewTensors]) -> list[torch.Tensor]:
    model = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    with torch.inference_mode():
        return [case.features(model, picture) for picture in pictures]


def tower_of(directory: Path, platform: Any = None) -> Tower:
    return load_tower(load(directory), platform or platform_for("cpu", "float32"), lambda done, total, unit: None)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Within 1e-5 of the largest number."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_rows_equal_those_of_transformers_alone_and_in_a_batch(
    directory: Path, pictures: list[ViewTensors], expected: list[torch.Tensor]
) -> None:
    tower = tower_of(directory)
    batch = tower(pictures)
    for rows, alone, wanted in zip(batch, [tower([picture])[0] for picture in pictures], expected, strict=True):
        assert_close(rows, wanted)
        assert torch.equal(rows, alone)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_multiplies_nothing_where_there_are_kernels(
    directory: Path, pictures: list[ViewTensors], dtype: str
) -> None:
    tower, products = tower_of(directory, platform_for("cpu", dtype)), TorchProducts()
    with products:
        tower(pictures)
    assert not products.found


def test_a_tower_stops_before_each_of_its_layers_where_it_shares_a_card(
    directory: Path, pictures: list[ViewTensors]
) -> None:
    """See ``visualserver.batches.slices``. Its rows are the same."""
    tower, waits = tower_of(directory), list[int]()
    whole = tower(pictures)
    slices = Slices(tower, Pace(0.3), lambda: 0.001, lambda: waits.append(1), sleep=lambda seconds: None)
    with slices.call(1):
        rows = tower(pictures)
    vision = load(directory).vision
    assert vision is not None
    assert len(waits) > vision.num_layers - 2, "a tower may need none of the last ones"
    assert all(map(torch.equal, rows, whole))


def test_rows_of_other_platforms(directory: Path, pictures: list[ViewTensors], expected: list[torch.Tensor]) -> None:
    reference = tower_of(directory, TorchPlatform(torch.device("cpu"), torch.float32))
    short = tower_of(directory, platform_for("cpu", "bfloat16"))
    for rows, short_rows, wanted in zip(reference(pictures), short(pictures), expected, strict=True):
        assert_close(rows, wanted)
        assert (short_rows - wanted).norm() < 0.03 * wanted.norm()
    for rows, picture in zip(short(pictures), pictures, strict=True):
        assert torch.equal(short([picture])[0], rows)


IN_MEMORY = (
    ("language_model.model.", "model.language_model."),
    ("language_model.lm_head.", "lm_head."),
    ("vision_tower.", "model.vision_tower."),
    ("multi_modal_projector.", "model.multi_modal_projector."),
    ("image_newline", "model.image_newline"),
    ("mlp_AR.", "model.projector."),
    ("visual.", "model.visual."),
    ("model.", "model.language_model."),
)
"""(prefix as the families' checkpoints are published, prefix in the models of transformers 5)"""


def test_weights_with_the_names_of_transformers_models(
    tmp_path: Path, case: Case, directory: Path, pictures: list[ViewTensors]
) -> None:
    renamed = shutil.copytree(directory, tmp_path / "renamed")
    rename_weights(renamed, *IN_MEMORY)
    assert all(map(torch.equal, tower_of(renamed)(pictures), tower_of(directory)(pictures)))


@pytest.mark.parametrize("name", ["internvl", "internvl, 6B"])
def test_internvl_in_its_authors_format(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    source = make_vision(tmp_path / "source", case.family, **case.changes)
    native = make_native_internvl(tmp_path / "native", source)
    found, expected = load(native), load(source)
    assert (found.text, found.image_token_id, found.image_token) == (expected.text, IMAGE, "<IMG_CONTEXT>")
    assert "<image>" in found.chat_template
    picture = ViewTensors(torch.randn(2, 3, 56, 56), torch.ones(1, 3, dtype=torch.int32))
    assert_close(tower_of(native)([picture])[0], tower_of(source)([picture])[0])


def test_older_siglip_and_clip_names(tmp_path: Path) -> None:
    for family, shape, grids in (
        ("gemma3", (1, 3, 56, 56), [[1, 1, 1]]),
        ("llava_next", (3, 3, 28, 28), [[1, 1, 2], [1, 4, 8]]),
    ):
        directory = make_vision(tmp_path / family, family)
        picture = ViewTensors(torch.randn(*shape), torch.tensor(grids, dtype=torch.int32))
        expected = tower_of(directory)([picture])[0]
        rename_weights(directory, ("vision_tower.", "vision_tower.vision_model."))
        assert torch.equal(tower_of(directory)([picture])[0], expected)


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("internvl", {"vision_feature_layer": -2}, "vision_feature_layer"),
        ("internvl", {"vision_config": {"norm_type": "batch_norm"}}, "norm_type"),
        ("internvl", {"vision_config": {"use_mean_pooling": False}}, "use_mean_pooling"),
        ("internvl", {"vision_config": {"image_size": [56, 28]}}, "image_size"),
        ("internvl", {"downsample_ratio": 0.2}, "downsample_ratio"),
        ("mistral3", {"vision_feature_layer": [-1, -2]}, "vision_feature_layer"),
        ("mistral3", {"vision_config": {"model_type": "clip_vision_model"}}, "clip_vision_model"),
        ("mistral3", {"vision_config": {"num_attention_heads": 5}}, "heads"),
        ("mistral3", {"projector_hidden_act": "mish"}, "mish"),
        ("pixtral", {"vision_feature_select_strategy": "default"}, "strategy"),
        ("gemma3", {"mm_tokens_per_image": 5}, "mm_tokens_per_image 5 does not fit 4 x 4"),
        ("gemma3", {"mm_tokens_per_image": 9}, "mm_tokens_per_image 9 does not fit 4 x 4"),
        ("paddleocr_vl", {"vision_config": {"num_attention_heads": 8}}, "multiple of 4"),
        ("llava_next", {"vision_feature_select_strategy": "full"}, "strategy"),
        ("llava_onevision", {"vision_feature_layer": -2}, "vision_feature_layer"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused(tmp_path: Path, family: str, change: dict[str, Any], message: str) -> None:
    directory = make_vision(tmp_path, family)
    config = json.loads((directory / "config.json").read_text())
    vision = config["vision_config"] | change.get("vision_config", {})
    (directory / "config.json").write_text(json.dumps(config | change | {"vision_config": vision}))
    with pytest.raises(StartupError, match=message):
        load(directory)
