"""Images to the fp32 pixel values of a model's image processor.

``native`` is for models of native resolution such as Qwen2-VL: every pixel in patches, each twice for the two frames of
a temporal patch, 54 MiB for 1536 x 1536. ``clip`` is LLaVA-1.5's 336 x 336: 1.3 MiB for any size.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable

import numpy as np
from PIL import Image

from benchmarks.memory.pickled.messages import Pixels

_PATCH = 14
_MERGED = 28
"""Sides are multiples of this, because two by two patches become one token."""
_FRAMES = 2
_CLIP_SIDE = 336
_MEAN = np.array((0.48145466, 0.4578275, 0.40821073), np.float32)
_STD = np.array((0.26862954, 0.26130258, 0.27577711), np.float32)


def decoded(data_url: str) -> Image.Image:
    """The decoded picture of a base64 data: URL."""
    image = Image.open(io.BytesIO(base64.b64decode(data_url.partition(",")[2])))
    image.load()
    return image


def native(image: Image.Image) -> Pixels:
    """[patches, 3 * 2 frames * 14 * 14] float32."""
    width, height = (max(_MERGED, round(side / _MERGED) * _MERGED) for side in image.size)
    frame = _normalised(image.resize((width, height), Image.Resampling.BICUBIC))
    frames = np.broadcast_to(frame, (_FRAMES, *frame.shape))
    rows, columns = height // _PATCH, width // _PATCH
    patches = frames.reshape(_FRAMES, 3, rows, _PATCH, columns, _PATCH).transpose(2, 4, 1, 0, 3, 5)
    return patches.reshape(rows * columns, 3 * _FRAMES * _PATCH * _PATCH)


def clip(image: Image.Image) -> Pixels:
    """[3, 336, 336] float32."""
    return np.ascontiguousarray(_normalised(image.resize((_CLIP_SIDE, _CLIP_SIDE), Image.Resampling.BICUBIC)))


def _normalised(image: Image.Image) -> Pixels:
    """[3, height, width] float32."""
    array = np.asarray(image, np.float32)
    array *= 1 / 255
    array -= _MEAN
    array /= _STD
    return array.transpose(2, 0, 1)


KINDS: dict[str, Callable[[Image.Image], Pixels]] = {"native": native, "clip": clip}
