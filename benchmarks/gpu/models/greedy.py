"""Answers of a checkpoint on a platform, in this process; pictures go through the family's tower and an arena."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from mmserve.checkpoint.load import load
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.messages.media import Handle
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.vision.interface import PixelTensors
from mmserve.model_backend.worker.model_runner import ModelRunner
from mmserve.processors.interface import Expansion
from mmserve.processors.registry import processor_for
from mmserve.visualserver.batches.towers import computing_rows
from tests.fakes.pictures.embeddings import prompt_with_images, put_rows
from tests.fakes.ranks.engine import Driver, make_runner

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_MAX_CONTEXT = 512


class Picture(NamedTuple):
    """One of a prompt's pictures, processed."""

    pixels: PixelTensors
    expansion: Expansion


class Prompt(NamedTuple):
    """Token ids, with the image token for each row of each run of the pictures."""

    ids: list[int]
    pictures: tuple[Picture, ...] = ()


class Answer(NamedTuple):
    """Of one prompt. ``logprobs``: of the chosen tokens."""

    tokens: list[int]
    logprobs: list[float]


def processed(spec: ModelSpec, files: Sequence[bytes]) -> tuple[Picture, ...]:
    """The pictures of one prompt."""
    found = processor_for(spec)
    assert found is not None, "a text model"
    processor = found.among(len(files))
    return tuple(Picture(PixelTensors.of(processor.views(file)), processor.expand(*_size(file))) for file in files)


def _size(file: bytes) -> tuple[int, int]:
    import io

    from PIL import Image

    return Image.open(io.BytesIO(file)).size


def answers(
    directory: Path,
    platform: Platform,
    prompts: Sequence[Prompt],
    num_tokens: int,
    chunk: int,
    sampling: SamplingParams,
    *,
    enforce_eager: bool = False,
    then: Callable[[ModelRunner], None] = lambda runner: None,
) -> list[Answer]:
    """All prompts at once, in chunks of so many tokens, ``then`` a look at what computed them. Raises AssertionError if
    one fails."""
    spec, device = load(directory), platform.device.type
    with _arena(spec, platform, prompts) as (arena, handles):
        runner = make_runner(
            directory,
            arena,
            platform,
            device=device,
            dtype=_DTYPES[platform.dtype],
            config=Config(model=str(directory), max_num_seqs=8, enforce_eager=enforce_eager),
            max_model_len=min(_MAX_CONTEXT, spec.text.max_position),
        )
        driver = Driver(runner, chunk, whole_images=spec.text.attends_whole_images)
        running = []
        for slot, (prompt, own) in enumerate(zip(prompts, handles, strict=True)):
            grids = [[run.grid for run in picture.expansion.runs] for picture in prompt.pictures]
            image_id = -1 if spec.image_token_id is None else spec.image_token_id
            ids, spans = prompt_with_images(prompt.ids, own, image_id=image_id, grids=grids)
            running.append(driver.add(slot, ids, spans=spans, sampling=sampling))
        driver.run(num_tokens)
        then(runner)
    return [Answer(each.output[:num_tokens], [row[0][1] for row in each.logprobs[:num_tokens]]) for each in running]


@contextlib.contextmanager
def _arena(
    spec: ModelSpec, platform: Platform, prompts: Sequence[Prompt]
) -> Iterator[tuple[Arena | None, list[list[Handle]]]]:
    """The pictures' rows, by the platform's tower, in an arena; a handle for each picture of each prompt."""
    if not any(prompt.pictures for prompt in prompts):
        yield None, [[] for _ in prompts]
        return
    processor = processor_for(spec)
    assert processor is not None, "a text model"
    tower = load_tower(spec, platform, lambda done, total, unit: None)
    rows_of = computing_rows(tower, processor.form, platform)
    rows = [rows_of([picture.pixels for picture in prompt.pictures]) if prompt.pictures else [] for prompt in prompts]
    arena = Arena.create(sum(extent_nbytes(each.numel() * each.element_size()) for own in rows for each in own) + 4096)
    try:
        offset, handles = 0, []
        for own in rows:
            handles.append(list[Handle]())
            for each in own:
                handle, offset = put_rows(arena, each, offset)
                handles[-1].append(handle)
        yield arena, handles
    finally:
        arena.close()
