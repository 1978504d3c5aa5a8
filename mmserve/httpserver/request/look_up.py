"""What the server has of a request already: its images in the arena, the beginning of its prompt in the prefix cache.

Nothing is leased, computed or kept by the question.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.request.path import ReadImage, RequestPath
from mmserve.messages.cache import StoredImage
from mmserve.messages.request import GenerateRequest, choice_id
from mmserve.messages.sampling import SamplingParams

_UNKNOWN = -1
"""A token that is in no cache."""


class Present(NamedTuple):
    """``images``: of the request, in order. ``cached_tokens``: of the prompt, which a request now would not compute."""

    images: Sequence[StoredImage]
    cached_tokens: int


async def look_up(
    path: RequestPath, call: GenerateCall, ids: array[int], images: Sequence[ReadImage], image_token_id: int | None
) -> Present:
    """``ids``: as ``RequestPath.token_ids`` gives them. Raises MmserveError."""
    stored = await path.alloc_paths.choose().leases.look_up([image.item for image in images])
    prompt = await path.prompt_threads.run(lambda: _as_cached(ids, image_token_id, images, stored))
    request = GenerateRequest(
        id=choice_id(call.request_id, 0),
        reply_to=path.worker,
        prompt_ids=prompt.tobytes(),
        sampling=SamplingParams(max_tokens=1),
        cache_salt=call.cache_salt,
        look_up=True,
        arrival_s=call.arrival_s,
    )
    async with path.dispatcher.submit(request) as replies:
        return Present(stored, [reply.num_cached_tokens async for reply in replies][-1])


def _as_cached(
    ids: Sequence[int], image_token_id: int | None, images: Sequence[ReadImage], stored: Sequence[StoredImage]
) -> array[int]:
    """The prompt with the virtual ids of its images, up to the first image that has none: it cannot be cached."""
    found, at = array("q"), 0
    for image, known in zip(images, stored, strict=True):
        first = known.token_start
        for time, height, width in image.grids:
            place = ids.index(image_token_id, at)
            found.extend(ids[at:place])
            if first < 0:
                found.append(_UNKNOWN)
                return found
            rows = time * height * width
            found.extend(range(first, first + rows))
            first, at = first + rows, place + rows
    found.extend(ids[at:])
    return found
