"""What is sent in a run and when: prompts, pictures, arrival times, all from a seed. No request is sent here."""

from __future__ import annotations

import base64
import io
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmserve.cli.bench.client import Body
from mmserve.client.pictures import PictureError, read_file
from mmserve.runtime.errors import StartupError

_WORDS = (
    "river stone window garden paper winter summer yellow circle number letter village mountain picture music "
    "table morning evening ship harbour bridge forest question answer story market engine signal copper silver "
    "thunder valley island meadow lantern button pocket bottle candle ribbon feather anchor compass basket"
).split()
_PICTURE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp"})


@dataclass(frozen=True)
class Load:
    """``prompts``: of the caller, taken in turn; none: ``words`` random words each. ``pictures``: URLs that requests
    choose from; none: random ones of ``image_size``, ``image_pool`` different ones, or all new if it is 0. ``timed``:
    ask where the time of each answer went, which only mmserve says."""

    requests: int = 100
    words: int = 128
    output_tokens: int = 64
    images: int = 0
    image_size: tuple[int, int] = (640, 480)
    image_pool: int = 0
    prompts: Sequence[str] = ()
    pictures: Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = False


def bodies(load: Load, model: str, seed: int) -> list[Body]:
    """Chat completions, streamed with usage. The same seed gives the same bodies."""
    rng = random.Random(seed)
    pool = list(load.pictures) or [data_url(jpeg(rng, load.image_size)) for _ in range(load.image_pool)]
    return [_body(load, model, rng, pool, number) for number in range(load.requests)]


def _body(load: Load, model: str, rng: random.Random, pool: Sequence[str], number: int) -> Body:
    urls = [rng.choice(pool) if pool else data_url(jpeg(rng, load.image_size)) for _ in range(load.images)]
    text = load.prompts[number % len(load.prompts)] if load.prompts else words(rng, load.words)
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {
        "model": model,
        "messages": [{"role": "user", "content": [*pictures, {"type": "text", "text": text}]}],
        "max_tokens": load.output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, **({"include_timing": True} if load.timed else {})},
        **load.extra,
    }


def arrivals(requests: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Times in seconds of requests at ``rate`` a second; infinite: all at once.

    The gaps follow a gamma distribution with this shape: 1 is a Poisson process, less is burstier, more is more even.
    """
    if math.isinf(rate):
        return [0.0] * requests
    rng, now_s, times = random.Random(seed), 0.0, []
    for _ in range(requests):
        now_s += rng.gammavariate(burstiness, 1 / (rate * burstiness))
        times.append(now_s)
    return times


def words(rng: random.Random, count: int) -> str:
    """``count`` random words, separated by spaces."""
    return " ".join(rng.choice(_WORDS) for _ in range(count))


def jpeg(rng: random.Random, size: tuple[int, int]) -> bytes:
    """A picture that compresses about as well as a photograph: large smooth shapes and noise."""
    noise = np.random.default_rng(rng.getrandbits(32))
    width, height = size
    coarse = noise.integers(0, 255, (max(2, height // 32), max(2, width // 32), 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), dtype=np.int16)
    pixels = np.clip(smooth + noise.integers(-12, 13, (height, width, 3)), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def data_url(data: bytes) -> str:
    """Of a JPEG."""
    return "data:image/jpeg;base64," + base64.b64encode(data).decode()


def read_prompts(path: Path) -> list[str]:
    """A prompt a line: as it is, or JSON with a field ``prompt``. Raises StartupError."""
    try:
        lines = [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"{path} cannot be read: {error}") from None
    if not lines:
        raise StartupError(f"{path} has no prompt")
    if not lines[0].lstrip().startswith("{"):
        return lines
    try:
        return [str(json.loads(line)["prompt"]) for line in lines]
    except (ValueError, LookupError, TypeError):
        raise StartupError(f'{path}: each line must be a text, or JSON with a field "prompt"') from None


def read_pictures(directory: Path) -> list[str]:
    """URLs of all pictures in a directory, in the order of their names. Raises StartupError."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix.lower() in _PICTURE_SUFFIXES)
        found = [read_file(path).url for path in paths]
    except (OSError, PictureError) as error:
        raise StartupError(f"{directory}: {error}") from None
    if not found:
        raise StartupError(f"{directory} has no pictures")
    return found
