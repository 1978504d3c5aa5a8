"""Four ranks in processes write transformers' greedy tokens about pictures, for every family that sees any, in float32.

Qwen's families and PaddleOCR-VL have two KV heads, each of which is on two ranks. Two ranks are tested behind the whole
server.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from PIL import Image

from mmserve.checkpoint.load import load
from mmserve.ipc.arena import Arena
from mmserve.messages.media import MediaSpan
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.device import platform_for
from mmserve.processors.registry import processor_for
from tests.fakes.models.picture_families import PICTURE_FAMILIES, Processed
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows
from tests.fakes.pictures.media import png
from tests.fakes.pictures.tower_inputs import read_by_tower
from tests.fakes.ranks.engine import Driver
from tests.fakes.ranks.ranks_in_processes import ranks_in_processes

FAMILIES = [name for name in PICTURE_FAMILIES if name != "smolvlm"]
"""Without SmolVLM, which the same code computes as Idefics3."""
NUM_TOKENS = 40
RANKS = 4
SIZES = ((60, 50), (100, 37), (640, 480))
"""(width, height) of the pictures. The last one becomes several tiles where the family makes tiles."""
PICTURES = [png(seed, *size) for seed, size in enumerate(SIZES)]
ASKED: tuple[tuple[int | str, ...], ...] = (
    ("What is ", 0, "?"),
    (2, "?"),
    ("Compare ", 1, " with ", 0),
    ("No picture",),
)
Prompt = tuple[list[int], tuple[MediaSpan, ...]]


class Asked(NamedTuple):
    """A family's checkpoint, prompts with pictures in an arena, and what transformers writes for each."""

    directory: Path
    arena: Arena
    prompts: list[Prompt]
    expected: list[list[int]]


@pytest.fixture(scope="module", params=FAMILIES)
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    make, processed = PICTURE_FAMILIES[request.param]
    directory, arena = make(tmp_path_factory.mktemp(request.param)), Arena.create(1 << 20)
    inputs = [_inputs(directory, question, processed) for question in ASKED]
    model = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    expected = []
    for each in inputs:
        out = model.generate(**each, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=-1)
        expected.append(out[0, each["input_ids"].shape[1] :].tolist())
    ids = [each["input_ids"][0].tolist() for each in inputs]
    yield Asked(directory, arena, _prompts(directory, arena, ids), expected)
    arena.close()


def _inputs(directory: Path, question: tuple[int | str, ...], processed: Processed) -> dict[str, Any]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in question]
    images = [Image.open(io.BytesIO(PICTURES[part])) for part in question if isinstance(part, int)]
    return processed(directory, [{"role": "user", "content": content}], images)


def _prompts(directory: Path, arena: Arena, ids: list[list[int]]) -> list[Prompt]:
    """With the rows of the pictures, by the family's tower."""
    spec = load(directory)
    processor = processor_for(spec)
    assert processor is not None
    assert spec.image_token_id is not None
    tower = load_tower(spec, platform_for("cpu", "float32"), lambda done, total, unit: None)
    found, end = [], 0
    for question, prompt in zip(ASKED, ids, strict=True):
        pictures = [part for part in question if isinstance(part, int)]
        among = processor.among(len(pictures))
        views = read_by_tower(among, [among.views(PICTURES[each]) for each in pictures])
        handles = []
        for rows in tower(views) if views else ():
            handle, end = put_rows(arena, rows, end)
            handles.append(handle)
        grids = [[run.grid for run in among.expand(*SIZES[each]).runs] for each in pictures]
        found.append(prompt_with_images(prompt, handles, image_id=spec.image_token_id, grids=grids))
    return found


def test_ranks_in_processes(asked: Asked, tmp_path: Path) -> None:
    with ranks_in_processes(asked.directory, asked.arena, RANKS, tmp_path / "store") as ranks:
        whole = load(asked.directory).text.attends_whole_images
        driver = Driver(ranks, chunk=20, whole_images=whole)
        sequences = [driver.add(slot, ids, spans=spans) for slot, (ids, spans) in enumerate(asked.prompts)]
        driver.run(NUM_TOKENS)
    assert [sequence.output[:NUM_TOKENS] for sequence in sequences] == asked.expected
