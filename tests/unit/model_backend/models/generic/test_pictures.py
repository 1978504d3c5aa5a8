"""A vision-language model without a family here: rows, prompts and tokens are those of transformers."""

from __future__ import annotations

import io
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from msgspec.structs import replace
from PIL import Image

from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.ipc.arena import Arena
from mmserve.messages.media import ExpandedImage
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.models.generic.describe import describe
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.vision.interface import CountsRows, PixelTensors, ViewTensors
from mmserve.processors.families.transformers import counted
from mmserve.processors.interface import Run
from mmserve.processors.registry import processor_for
from mmserve.runtime.errors import MediaError, StartupError
from tests.fakes.models.checkpoints import IMAGE, make_llava, make_vipllava
from tests.fakes.models.idefics3 import make_idefics3
from tests.fakes.models.vision_checkpoints import IMAGE as NEXT_IMAGE
from tests.fakes.models.vision_checkpoints import make_llava_next_with_processor, make_paddleocr_with_processor
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows
from tests.fakes.ranks.engine import Driver, make_runner

SIZES = ((28, 28), (64, 31), (20, 90))
TEXTS = ("USER: <image>what?\n", "USER: <image> and <image> then <image>\nASSISTANT:", "no picture")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vipllava(tmp_path_factory.mktemp("vipllava"))


@pytest.fixture(scope="module")
def model(directory: Path) -> ModelSpec:
    return describe(directory)


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena.create(1 << 20)
    yield made
    made.close()


def png(index: int) -> bytes:
    width, height = SIZES[index % len(SIZES)]
    values = np.random.default_rng(index).integers(0, 256, (height, width, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG")
    return buffer.getvalue()


def test_what_a_picture_becomes_is_found_at_start(model: ModelSpec) -> None:
    processor = processor_for(model)
    assert processor is not None
    assert (processor.placeholder, processor.row_token, processor.max_rows) == ("<image>", "<image>", 16)
    assert model.image_token_id == IMAGE
    expansion = processor.expand(640, 480)
    assert expansion == ("<image>", (Run(16, (1, 1, 16)),))
    assert processor.decoded_nbytes(100, 50, 1000) == 1000 + 18 * 100 * 50
    with pytest.raises(MediaError):
        processor.views(b"no picture")
    assert not processor.request_options
    with pytest.raises(StartupError, match="--mm-processor-kwargs"):
        processor_for(replace(model, processor_options={"size": 56}))


def test_tokens_equal_transformers(directory: Path, model: ModelSpec, arena: Arena) -> None:
    assert_tokens_equal_transformers(directory, model, arena)


def test_tokens_equal_transformers_where_they_depend_on_sizes(tmp_path: Path, arena: Arena) -> None:
    model = describe(make_llava_next_with_processor(tmp_path))
    assert isinstance(model.vision, GenericVision)
    assert (model.vision.rows, model.vision.expansion, model.image_token_id) == ((), "<image>", NEXT_IMAGE)
    found = counting_tower(model).expansions(SIZES)
    assert len({image.grids for image in found}) == 3, found
    assert all(counted(model.vision, image).text == "<image>" for image in found)
    assert_tokens_equal_transformers(tmp_path, model, arena)


def test_rows_are_counted_as_by_mmserves_own_processor(tmp_path: Path) -> None:
    model = describe(make_llava_next_with_processor(tmp_path))
    own = processor_for(load(tmp_path))
    tower = counting_tower(model)
    assert own is not None
    assert isinstance(model.vision, GenericVision)
    sizes = [(width, height) for width in (1, 7, 60, 500) for height in (3, 28, 333)]
    for size, image in zip(sizes, tower.expansions(sizes), strict=True):
        assert counted(model.vision, image).num_rows == own.expand(*size).num_rows
    with pytest.raises(MediaError, match="more than the"):
        counted(model.vision, ExpandedImage("<image>", ((1, 1, model.vision.max_rows + 1),)))


def test_tokens_equal_transformers_with_positions_of_three_axes(tmp_path: Path, arena: Arena) -> None:
    model = describe(make_paddleocr_with_processor(tmp_path))
    assert isinstance(model.vision, GenericVision)
    assert (model.vision.axes, model.vision.rows) == (3, ())
    own, found = processor_for(load(tmp_path)), counting_tower(model).expansions(SIZES)
    assert own is not None
    assert [image.grids[0] for image in found] == [own.expand(*size).runs[0].grid for size in SIZES]
    assert_tokens_equal_transformers(tmp_path, model, arena)


def test_tokens_equal_transformers_where_the_text_depends_on_sizes(tmp_path: Path, arena: Arena) -> None:
    """Tiles with names and line breaks between them."""
    model = describe(make_idefics3(tmp_path))
    assert isinstance(model.vision, GenericVision)
    assert (model.vision.expansion, model.vision.rows) == ("", ())
    own, found = processor_for(load(tmp_path)), counting_tower(model).expansions(SIZES)
    assert own is not None
    assert [counted(model.vision, image).text for image in found] == [own.expand(*size).text for size in SIZES]
    assert len({len(image.grids) for image in found}) == 2, "one has more tiles than another"
    assert own.max_rows <= model.vision.max_rows
    assert_tokens_equal_transformers(tmp_path, model, arena)


def test_a_text_that_gives_other_tokens_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_idefics3(tmp_path)
    decode = transformers.PreTrainedTokenizerFast.decode
    monkeypatch.setattr(
        transformers.PreTrainedTokenizerFast, "decode", lambda *given, **more: decode(*given, **more)[1:]
    )
    with pytest.raises(StartupError, match="Idefics3Processor writes for a picture gives other tokens alone"):
        describe(tmp_path)


def counting_tower(model: ModelSpec) -> Any:
    tower = load_tower(model, platform_for("cpu", "float32"), lambda done, total, unit: None)
    assert isinstance(tower, CountsRows)
    return tower


def assert_tokens_equal_transformers(directory: Path, model: ModelSpec, arena: Arena) -> None:
    reference = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    hf_processor = transformers.AutoProcessor.from_pretrained(directory)
    processor = processor_for(model)
    assert processor is not None
    assert model.image_token_id is not None
    tower = counting_tower(model)
    driver = Driver(make_runner(directory, arena, model=model), chunk=7)
    sequences, expected, offset = [], [], 0
    for slot, text in enumerate(each.replace("<image>", processor.placeholder) for each in TEXTS):
        data = [png(slot + index) for index in range(text.count(processor.placeholder))]
        pictures = [Image.open(io.BytesIO(each)) for each in data]
        inputs = hf_processor(text=text, images=pictures or None, return_tensors="pt")
        out = reference.generate(**inputs, do_sample=False, max_new_tokens=10, eos_token_id=-1)
        expected.append(out[0, inputs["input_ids"].shape[1] :].tolist())
        handles = []
        grids = [image.grids for image in tower.expansions([picture.size for picture in pictures])]
        for each, runs in zip(data, grids, strict=True):
            (rows,) = tower([ViewTensors(*PixelTensors.of(processor.views(each))[:2])])
            assert len(rows) == sum(map(prod, runs))
            handle, offset = put_rows(arena, rows, offset)
            handles.append(handle)
        ids = inputs["input_ids"][0].tolist()
        prompt, spans = prompt_with_images(ids, handles, image_id=model.image_token_id, grids=grids)
        sequences.append(driver.add(slot, prompt, spans=spans))
    driver.run(10)
    assert [s.output[:10] for s in sequences] == expected


def test_parts_that_a_process_does_not_use_are_freed(directory: Path, model: ModelSpec) -> None:
    tower = load_tower(model, platform_for("cpu", "float32"), lambda done, total, unit: None)
    assert not any("language_model" in name for name, _ in tower.named_parameters())  # type: ignore[attr-defined]
    runner = make_runner(directory, model=model)
    assert not any("vision_tower" in name for name, _ in runner._model.named_parameters())  # type: ignore[attr-defined]


def test_llava_can_be_computed_either_way(tmp_path: Path) -> None:
    spec = describe(make_llava(tmp_path))
    assert (spec.family, spec.vision.rows) == ("transformers", (16,))  # type: ignore[union-attr]
