"""Embedding rows in an arena, and prompts with images that refer to them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from mmserve.config.deployment import FIRST_VIRTUAL_TOKEN
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
    ids: Sequence[int], handles: Sequence[Handle], *, image_id: int, num_tokens: int = 0, grids: Sequence[Grid] = ()
) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """Replace runs of ``image_id`` by virtual ids. Returns the prompt and its spans, in order. Images have
    ``num_tokens`` each, or rows in ``grids``."""
    prompt, spans = list(ids), []
    grids = grids or [(1, 1, num_tokens)] * len(handles)
    counts = [prod(grid) for grid in grids]
    positions = [index for index, token in enumerate(ids) if token == image_id]
    assert len(positions) == sum(counts)
    for image, (handle, count) in enumerate(zip(handles, counts, strict=True)):
        start = positions[sum(counts[:image])]
        first = FIRST_VIRTUAL_TOKEN + handle.offset
        prompt[start : start + count] = range(first, first + count)
        spans.append(
            MediaSpan(
                start=start,
                num_tokens=count,
                item_id=image,
                data=None,
                embed=handle,
                media_index=image,
                grid=grids[image],
            )
        )
    return prompt, tuple(spans)
