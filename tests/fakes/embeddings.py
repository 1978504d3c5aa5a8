"""Embedding rows in an arena, and prompts that name them, as the visual server and the http worker would make them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmserve.config.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.messages.media import Handle, MediaSpan


def put_rows(arena: Arena, rows: torch.Tensor, offset: int, generation: int = 77) -> tuple[Handle, int]:
    """Write [n, hidden] as a sealed extent at ``offset``; the handle and the next free offset."""
    payload = rows.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    handle = Handle(generation, offset, len(payload))
    arena.write(handle, payload)
    return handle, offset + extent_nbytes(len(payload))


def spliced_prompt(
    ids: Sequence[int], handles: Sequence[Handle], *, image_id: int, num_tokens: int
) -> tuple[list[int], tuple[MediaSpan, ...]]:
    """Replace the runs of ``image_id`` (num_tokens each) by virtual ids; the spans for them, in order."""
    prompt, spans = list(ids), []
    places = [index for index, token in enumerate(ids) if token == image_id]
    assert len(places) == num_tokens * len(handles)
    for image, handle in enumerate(handles):
        start = places[image * num_tokens]
        first = FIRST_VIRTUAL_TOKEN + handle.offset
        prompt[start : start + num_tokens] = range(first, first + num_tokens)
        spans.append(
            MediaSpan(start=start, num_tokens=num_tokens, item_id=image, data=None, embed=handle, media_index=image)
        )
    return prompt, tuple(spans)
