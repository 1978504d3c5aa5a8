"""Embedding rows in an arena, and prompts with images that refer to them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmserve.config.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.messages.media import Handle, MediaSpan
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
    ids: Sequence[int], handles: Sequence[Handle], *, image_id: int, num_tokens: int
) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """Replace each run of num_tokens ``image_id`` by virtual ids. Returns the prompt and its spans, in order."""
    prompt, spans = list(ids), []
    positions = [index for index, token in enumerate(ids) if token == image_id]
    assert len(positions) == num_tokens * len(handles)
    for image, handle in enumerate(handles):
        start = positions[image * num_tokens]
        first = FIRST_VIRTUAL_TOKEN + handle.offset
        prompt[start : start + num_tokens] = range(first, first + num_tokens)
        spans.append(
            MediaSpan(start=start, num_tokens=num_tokens, item_id=image, data=None, embed=handle, media_index=image)
        )
    return prompt, tuple(spans)
