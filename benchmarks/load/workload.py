"""Workloads: prompts of random words and photo-like JPEGs, all from a seed."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

_DOCUMENT = Path(__file__).parents[1] / "answers/harbour.txt"
_BEGINNING_WORDS = 20
_WORDS = (
    "river stone window garden paper winter summer yellow circle number letter village mountain picture music "
    "table morning evening ship harbour bridge forest question answer story market engine signal copper silver "
    "thunder valley island meadow lantern button pocket bottle candle ribbon feather anchor compass basket"
).split()


@dataclass(frozen=True)
class Workload:
    """One kind of load. Lengths in words and tokens, sizes in pixels."""

    name: str
    concurrency: int
    requests: int
    prompt_words: int
    output_tokens: int
    shared_prefix_words: int = 0
    images: int = 0
    """Images per request."""
    image_pool: int = 0
    """Number of distinct images in all requests; 0: every image is new."""
    image_size: tuple[int, int] = (640, 480)
    document_words: int = 0
    """The prompt is a text of so many words, twice, and the answer begins as the text does: a model goes on copying."""


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


def words(rng: random.Random, count: int) -> str:
    """``count`` random words, separated by spaces."""
    return " ".join(rng.choice(_WORDS) for _ in range(count))


def bodies(workload: Workload, model: str, seed: int, extra: Mapping[str, object]) -> list[dict[str, object]]:
    """Chat-completion bodies, streamed with usage, each with its own prompt; ``extra`` fields go into every one.

    The same seed gives the same bodies."""
    rng = random.Random(f"{workload.name}-{seed}")
    prefix = words(rng, workload.shared_prefix_words)
    pool = [_data_url(jpeg(rng, workload.image_size)) for _ in range(workload.image_pool)]
    return [{**_body(workload, model, rng, prefix, pool), **extra} for _ in range(workload.requests)]


def _data_url(data: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(data).decode()


def _body(workload: Workload, model: str, rng: random.Random, prefix: str, pool: list[str]) -> dict[str, object]:
    if workload.document_words:
        return _copying_body(workload, model, rng)
    content: list[dict[str, object]] = []
    for _ in range(workload.images):
        url = rng.choice(pool) if pool else _data_url(jpeg(rng, workload.image_size))
        content.append({"type": "image_url", "image_url": {"url": url}})
    content.append({"type": "text", "text": f"{prefix} {words(rng, workload.prompt_words)}".strip()})
    return _streamed(workload, model, [{"role": "user", "content": content}])


def _copying_body(workload: Workload, model: str, rng: random.Random) -> dict[str, object]:
    """``continue_final_message`` is vLLM's; llama.cpp continues an assistant's last message without being asked to."""
    paragraphs = _DOCUMENT.read_text().split("\n\n")
    first = rng.randrange(len(paragraphs))
    text = "\n\n".join(paragraphs[first:] + paragraphs[:first]).split(" ")[: workload.document_words]
    document, beginning = " ".join(text), " ".join(text[:_BEGINNING_WORDS])
    messages = [
        {"role": "user", "content": f"{document}\n\n{document}"},
        {"role": "assistant", "content": beginning},
    ]
    continued = {"continue_final_message": True, "add_generation_prompt": False}
    return {**_streamed(workload, model, messages), **continued}


def _streamed(workload: Workload, model: str, messages: list[dict[str, object]]) -> dict[str, object]:
    return {
        "model": model,
        "messages": messages,
        "max_tokens": workload.output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
