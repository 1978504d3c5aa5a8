"""An image to encode and the outcome of its work: the data that queue, decoder and encoder share. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mmserve.messages.media import DEFAULT_PROCESSING, Handle, Processing
from mmserve.messages.request import AbortReason


@dataclass(frozen=True)
class Image:
    """One image to encode: where its compressed bytes are and where its embedding rows go."""

    item_id: int
    data: Handle
    embed: Handle
    processing: Processing = DEFAULT_PROCESSING
    key: bytes = b""
    """Its content key, if it has one."""


@dataclass(frozen=True)
class Outcome:
    """How the work on an image ended: encoded, or the reason for which every request that needs it is aborted."""

    state: Literal["encoded"] | AbortReason
    message: str = ""


ENCODED = Outcome("encoded")
LOST = Outcome("media_lost", "the image is no longer in the media cache")
INTERNAL = Outcome("internal_error", "the image could not be encoded")
NOT_FINITE = Outcome(
    "internal_error", "the vision tower computed values that are not finite numbers for an image of this request"
)


def item_ids(images: Sequence[Image]) -> tuple[int, ...]:
    """Item ids of the images, in order."""
    return tuple(image.item_id for image in images)
