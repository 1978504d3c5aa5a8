"""Images are made smaller where the checkpoint's largest one does not fit into the context or the arena."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmserve.checkpoint.spec import LayerSpec, ModelSpec
from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.checkpoint.vision.gemma3 import Gemma3Vision
from mmserve.checkpoint.vision.tower import TowerSpec
from mmserve.config.config import Config
from mmserve.processors.registry import processor_for
from mmserve.processors.settings import with_options
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.startup import plan
from mmserve.supervisor.startup.image_limit import limit_images
from mmserve.supervisor.startup.machine import Machine
from tests.fakes.models.image_processors import FAMILIES, TABLE_SIZES, model_with
from tests.fakes.models.weight_files import sparse_weights
from tests.fakes.pictures.media import COUNTED
from tests.unit.supervisor.startup.test_plan import GPU, LAPTOP, XEON


def model_of(family: str, directory: Path, **text: Any) -> ModelSpec:
    """Of one of FAMILIES, with a context of 32768 tokens."""
    settings, tower = FAMILIES[family]
    sparse_weights(directory, {})
    model = model_with(directory, settings, **tower)
    spec = msgspec.structs.replace(model.text, max_position=32768, **text)
    return msgspec.structs.replace(model, family=family, text=spec)


def limited(model: ModelSpec, machine: Machine = LAPTOP, **options: Any) -> tuple[ModelSpec, int]:
    config = Config(**options)
    if config.mm_processor_kwargs is not None:
        model = with_options(model, config.mm_processor_kwargs)
    found, rows = limit_images(config, model, machine)
    plan.make(config, found, machine, run_dir="/run/x", url="http://127.0.0.1:1", max_image_rows=rows)
    processor = processor_for(found)
    assert processor is not None
    assert processor.max_rows == rows
    return found, rows


def test_images_that_fit_stay_as_they_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = model_of("qwen3_vl", tmp_path)
    assert limited(model) == (model, 16384)
    assert limited(model, max_model_len=16385) == (model, 16384)
    assert not caplog.records


@pytest.mark.parametrize("context", [16384, 4096, 256])
def test_images_get_half_of_a_context_that_is_too_short(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, context: int
) -> None:
    with caplog.at_level(logging.WARNING):
        found, rows = limited(model_of("qwen3_vl", tmp_path), max_model_len=context)
    assert 0.4 * context < rows < context / 2
    (record,) = caplog.records
    assert "16384 tokens" in record.getMessage()
    assert f"at most {rows} tokens" in record.getMessage()
    assert msgspec.json.encode(found.processor_options).decode() in record.getMessage()


def test_images_get_half_of_an_arena_that_is_too_small(tmp_path: Path) -> None:
    model = model_of("qwen2_5_vl", tmp_path, hidden_size=4096)
    row_nbytes = 4 * 4096
    needed_gb = 1280 * row_nbytes / plan.GIB
    assert limited(model, mm_cache_gb=needed_gb + 0.001)[1] == 1280
    rows = limited(model, mm_cache_gb=needed_gb)[1]
    assert 500 < rows <= 640
    assert limited(model, XEON, mm_cache_gb=needed_gb)[1] == rows, "activations of a CPU are float32"
    assert limited(model, GPU, mm_cache_gb=needed_gb)[1] == 1280, "bfloat16 takes half as much"


def test_settings_that_the_user_has_chosen_are_not_changed(tmp_path: Path) -> None:
    model = model_of("qwen3_vl", tmp_path)
    with pytest.raises(StartupError, match="--mm-processor-kwargs"):
        limited(model, max_model_len=4096, mm_processor_kwargs={"max_pixels": 16777216})


def test_a_family_without_smaller_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="--max-model-len 200"):
        limited(model_of("gemma3", tmp_path), max_model_len=200)


def test_a_step_needs_room_for_one_tile_where_text_stands_between_the_tiles(tmp_path: Path) -> None:
    """Gemma 3 computes a tile in one step; with pan and scan a picture has up to five."""
    model = model_of("gemma3", tmp_path, layers=(LayerSpec(whole_images=True),))
    assert isinstance(model.vision, ClipVision)
    of_any_tower = {name: getattr(model.vision, name) for name in TowerSpec.__struct_fields__}
    vision = Gemma3Vision(image_size=model.vision.image_size, rows_per_side=16, **of_any_tower)
    model = msgspec.structs.replace(model, vision=vision)
    pan_and_scan = {"mm_processor_kwargs": {"do_pan_and_scan": True}, "max_num_seqs": 8}
    _, rows = limited(model, max_num_batched_tokens=256 + 7, **pan_and_scan)
    assert rows == 5 * 256
    with pytest.raises(StartupError, match="raise it to 263"):
        limited(model, max_num_batched_tokens=256 + 6, **pan_and_scan)


def test_larger_images_of_a_model_of_transformers_are_refused_one_by_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vision = msgspec.structs.replace(COUNTED, max_rows=9000)
    model = msgspec.structs.replace(model_of("gemma3", tmp_path), family="transformers", vision=vision)
    assert limited(model) == (model, 9000)
    found, rows = limited(model, max_model_len=4096)
    assert rows == 4095
    assert found == msgspec.structs.replace(model, vision=msgspec.structs.replace(vision, max_rows=4095))
    assert "more than 4095 are refused" in caplog.text


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_keeps_to_a_limit(tmp_path: Path, family: str) -> None:
    model = model_of(family, tmp_path)
    whole = processor_for(model)
    assert whole is not None
    for share in (0.9, 0.61):
        limit = int(share * whole.max_rows)
        options = whole.within(limit)
        assert options is not None
        smaller = processor_for(with_options(model, options))
        assert smaller is not None
        assert all(smaller.expand(*size).num_rows <= smaller.max_rows for size in TABLE_SIZES)
        assert smaller.max_rows <= limit
        assert smaller.max_rows > limit / 3
    assert whole.within(1) is None or family in ("mistral3", "qwen2_5_vl", "qwen3_vl", "paddleocr_vl")
