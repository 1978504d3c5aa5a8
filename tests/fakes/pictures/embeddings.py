"""Embedding rows in an arena, and prompts with images that refer to them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.messages.media import Grid, Handle, MediaSpan
from mmserve.model_backend.vision.interface import ViewTensors


def tiles(pixels: torch.Tensor) -> list[ViewTensors]:
    """A tower's input: pictures of one tile each, from pixels [B, 3, H, W]."""
    return [ViewTensors(each[None], torch.ones(1, 3, dtype=torch.int32)) for each in pixels]


def put_rows(arena: Arena, rows: torch.Tensor, offset: int, generation: int = 77) -> tuple[Handle, int]:
    """Write rows [n, hidden] into a sealed extent at ``offset``. Returns its handle and the next free offset."""
    payload = rows.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    handle = Handle(generation, offset, len(payload))
    arena.open(handle)
    arena.write(handle, payload)
    return handle, offset + extent_nbytes(len(payload))


def prompt_with_images(
    ids: Sequence[int],
    handles: Sequence[Handle],
    *,
    image_id: int,
    num_tokens: int = 0,
    grids: Sequence[Sequence[Grid]] = (),
) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """Replace runs of ``image_id`` by virtual ids. Returns the prompt and its spans, in order. Images have
    ``num_tokens`` each in one run, or runs of rows in ``grids``."""
    prompt, spans = list(ids), []
    runs_of = grids or [[(1, 1, num_tokens)]] * len(handles)
    positions = iter([index for index, token in enumerate(ids) if token == image_id])
    for image, (handle, runs) in enumerate(zip(handles, runs_of, strict=True)):
        row = 0
        for grid in runs:
            start, *_ = [next(positions) for _ in range(prod(grid))]
            first = FIRST_VIRTUAL_TOKEN + handle.offset + row
            prompt[start : start + prod(grid)] = range(first, first + prod(grid))
            spans.append(
                MediaSpan(
                    start=start,
                    num_tokens=prod(grid),
                    item_id=image,
                    data=None,
                    embed=handle,
                    media_index=image,
                    first_row=row,
                    grid=grid,
                )
            )
            row += prod(grid)
    assert next(positions, None) is None
    return prompt, tuple(spans)
