"""Requests change settings of the image processor, within those of the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mmserve.messages.media import Processing
from mmserve.processors.image_processors import MAX_OPTIONS_NBYTES, ImageProcessors, image_processors_for
from mmserve.processors.settings import with_options
from mmserve.runtime.errors import InvalidRequest
from tests.fakes.models.image_processors import FAMILIES, model_with, reference
from tests.fakes.pictures.media import model_spec, png
from tests.fakes.pictures.tower_inputs import numbers

QWEN25, QWEN3 = "qwen2_5_vl", "qwen3_vl"
PARAM = "mm_processor_kwargs"


def image_processors(family: str, directory: Path, server: dict[str, Any] | None = None) -> ImageProcessors:
    """Of one of FAMILIES; ``server``: --mm-processor-kwargs."""
    settings, tower = FAMILIES[family]
    model = msgspec.structs.replace(model_with(directory, settings, **tower), family=family)
    found = image_processors_for(with_options(model, server or {}))
    assert found is not None
    return found


def _of(processors: ImageProcessors, options: dict[str, Any], count: int = 1) -> Any:
    return processors.of(Processing(processors.checked(options, PARAM), count))


PAN_AND_SCAN = {"pan_and_scan_min_crop_size": 256, "pan_and_scan_min_ratio_to_activate": 1.2}
AREA = {"size": {"shortest_edge": 3136, "longest_edge": 28**2 * 16}}
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    (QWEN25, {"max_pixels": 28**2 * 16}, "Qwen2VLImageProcessorPil", {}),
    (QWEN25, {"min_pixels": 28**2 * 600}, "Qwen2VLImageProcessorPil", {}),
    (QWEN25, AREA, "Qwen2VLImageProcessorPil", {}),
    (QWEN3, {"size": {"shortest_edge": 1024, "longest_edge": 65536}}, "Qwen2VLImageProcessorPil", {}),
    ("paddleocr_vl", {"max_pixels": 28**2 * 200}, "PaddleOCRVLImageProcessorPil", {}),
    ("internvl", {"max_patches": 3}, "GotOcr2ImageProcessorPil", {"crop_to_patches": True}),
    ("gemma3", {"do_pan_and_scan": False}, "Gemma3ImageProcessorPil", {}),
    ("gemma3", {"pan_and_scan_max_num_crops": 1}, "Gemma3ImageProcessorPil", PAN_AND_SCAN),
    ("idefics3", {"size": {"longest_edge": 1024}}, "Idefics3ImageProcessorPil", {}),
    ("idefics3", {"do_image_splitting": False}, "Idefics3ImageProcessorPil", {}),
    ("llava_next", {"image_grid_pinpoints": [[336, 672], [672, 336]]}, "LlavaNextImageProcessorPil", {}),
]


@pytest.mark.filterwarnings("ignore:Passing `min_pixels` and `max_pixels`")
@pytest.mark.parametrize(("family", "options", "name", "beside"), CASES, ids=lambda value: str(value)[:40])
def test_pictures_are_those_of_transformers_with_the_same_settings(
    tmp_path: Path, family: str, options: dict[str, Any], name: str, beside: dict[str, Any]
) -> None:
    """``beside``: what transformers' processor class passes always."""
    processors, sizes = image_processors(family, tmp_path), ((640, 480), (100, 37))
    changed = False
    for data in (png(1, *size) for size in sizes):
        views = numbers(_of(processors, options), data)
        theirs = reference(name, tmp_path, data, **beside, **options)["pixel_values"]
        assert np.array_equal(views.values, theirs.reshape(-1, *views.values.shape[1:]))
        changed = changed or not np.array_equal(views.values, numbers(processors.server, data).values)
    assert changed
    assert _of(processors, options).settings_digest() != processors.server.settings_digest()


def test_lines_of_mistral_are_as_short_as_a_request_wants(tmp_path: Path) -> None:
    processors = image_processors("mistral3", tmp_path)
    options, data = {"size": {"longest_edge": 280}}, png(1, 640, 480)
    height, width = reference("PixtralImageProcessorPil", tmp_path, data, patch_size=28, **options)["image_sizes"][0]
    views = numbers(_of(processors, options), data)
    assert views.grids.tolist() == [[1, height // 14, width // 14]]
    assert _of(processors, options).expand(640, 480).num_rows == (height // 28) * (width // 28)


def test_native_internvl_has_the_names_of_its_own_code_too(tmp_path: Path) -> None:
    model = model_with(tmp_path, {}, image_size=56, patch_size=14, patches_per_row=4)
    (tmp_path / "config.json").write_text(json.dumps({"llm_config": {}, "max_dynamic_patch": 6}))
    processors = image_processors_for(msgspec.structs.replace(model, family="internvl_chat"))
    assert processors is not None
    assert _of(processors, {"max_dynamic_patch": 2}).max_rows == _of(processors, {"max_patches": 2}).max_rows == 4 * 3
    assert _of(processors, {"dynamic_image_size": False}).max_rows == 4
    with pytest.raises(InvalidRequest, match="two names"):
        processors.checked({"max_dynamic_patch": 2, "max_patches": 3}, PARAM)


@pytest.mark.parametrize(
    ("family", "options", "param", "message"),
    [
        (
            QWEN25,
            {"fps": 2},
            ".fps",
            "no setting 'fps' for requests; a request may change max_pixels, min_pixels, size",
        ),
        (QWEN25, {"max_pixels": 10**6, "fps": 2}, ".fps", "no setting"),
        (QWEN25, {"image_mean": [0, 0, 0]}, ".image_mean", "no setting"),
        (QWEN25, {"patch_size": 28}, ".patch_size", "no setting"),
        (QWEN25, {"max_pixels": 1003520 + 28**2}, ".max_pixels", "could take 1281 tokens .* allow 1280"),
        (QWEN25, {"max_pixels": 10**400}, ".max_pixels", "could take|cannot use"),
        (QWEN25, {"min_pixels": 10**6, "max_pixels": 10**5}, "", "make no sense"),
        (QWEN25, {"max_pixels": "many"}, ".max_pixels", "Expected `int"),
        (QWEN25, {"max_pixels": [5]}, ".max_pixels", "Expected `int"),
        (QWEN25, {"size": {"longest_edge": 10**5}}, ".size", "shortest_edge"),
        (QWEN25, {"size": {"width": 10}}, ".size", "width"),
        (QWEN25, {"size": {"shortest_edge": 1, "longest_edge": 10**400}}, ".size", "could take|cannot use"),
        ("internvl", {"max_patches": 13}, ".max_patches", "could take 3584 tokens"),
        ("internvl", {"max_patches": 10**12}, ".max_patches", "make no sense"),
        ("internvl", {"size": {"height": 224, "width": 224}}, ".size", "cannot use this"),
        ("idefics3", {"size": {"longest_edge": 10**400}}, ".size", "cannot use this"),
        ("idefics3", {"max_image_size": {"longest_edge": 364}}, ".max_image_size", "cannot use this"),
        ("mistral3", {"size": {"longest_edge": 1541}}, ".size", "tokens"),
        ("gemma3", {"pan_and_scan_max_num_crops": 5}, ".pan_and_scan_max_num_crops", "could take 1536 tokens"),
        ("llava_next", {"image_grid_pinpoints": [[336, 33600]]}, ".image_grid_pinpoints", "tokens"),
        ("llava_next", {"image_grid_pinpoints": [[336, 336]] * 1000}, "", f"{MAX_OPTIONS_NBYTES} bytes"),
    ],
)
def test_what_the_server_does_not_allow_is_refused_by_name(
    tmp_path: Path, family: str, options: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        image_processors(family, tmp_path).checked(options, PARAM)
    assert refused.value.param == PARAM + param
    assert str(tmp_path) not in refused.value.message


def test_settings_of_a_request_stand_on_those_of_the_server(tmp_path: Path) -> None:
    processors = image_processors(QWEN25, tmp_path, {"max_pixels": 28**2 * 400})
    assert processors.server.max_rows == 400
    with pytest.raises(InvalidRequest, match="401 tokens"):
        processors.checked({"max_pixels": 28**2 * 401}, PARAM)
    assert _of(processors, {"min_pixels": 28**2 * 50}).expand(28, 28).num_rows >= 50
    assert _of(processors, {"min_pixels": 28**2 * 50}).expand(640, 480).num_rows <= 400
    limits = {"shortest_edge": 28**2, "longest_edge": 28**2 * 20}
    assert _of(processors, {"size": limits}).max_rows == _of(processors, {"max_pixels": 28**2 * 20}).max_rows


def test_a_size_of_the_server_wins_over_older_names_in_the_checkpoint(tmp_path: Path) -> None:
    limits = {"shortest_edge": 28**2, "longest_edge": 28**2 * 40}
    assert image_processors(QWEN25, tmp_path, {"size": limits}).server.max_rows < 1280


def test_nothing_and_nulls_are_the_servers_settings(tmp_path: Path) -> None:
    processors = image_processors(QWEN25, tmp_path)
    assert processors.checked({}, PARAM) == processors.checked({"max_pixels": None}, PARAM) == ""
    assert processors.of(Processing()) is processors.server
    options = processors.checked({"max_pixels": 784000}, PARAM)
    assert processors.of(Processing(options)) is processors.of(Processing(options, 3))


def test_a_text_model_has_no_processors(tmp_path: Path) -> None:
    assert image_processors_for(msgspec.structs.replace(model_spec(tmp_path), vision=None)) is None
