"""Workloads: prompts of random words and photo-like JPEGs, all from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmserve.cli.bench.plan import data_url, jpeg, words

_DOCUMENT = Path(__file__).parents[1] / "answers/harbour.txt"
_BEGINNING_WORDS = 20


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


def bodies(workload: Workload, model: str, seed: int, extra: Mapping[str, object]) -> list[dict[str, object]]:
    """Chat-completion bodies, streamed with usage, each with its own prompt; ``extra`` fields go into every one.

    The same seed gives the same bodies."""
    rng = random.Random(f"{workload.name}-{seed}")
    prefix = words(rng, workload.shared_prefix_words)
    pool = [data_url(jpeg(rng, workload.image_size)) for _ in range(workload.image_pool)]
    return [{**_body(workload, model, rng, prefix, pool), **extra} for _ in range(workload.requests)]


def _body(workload: Workload, model: str, rng: random.Random, prefix: str, pool: list[str]) -> dict[str, object]:
    if workload.document_words:
        return _copying_body(workload, model, rng)
    content: list[dict[str, object]] = []
    for _ in range(workload.images):
        url = rng.choice(pool) if pool else data_url(jpeg(rng, workload.image_size))
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
