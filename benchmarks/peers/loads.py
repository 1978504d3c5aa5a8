"""What every server is asked to do, in groups that one start of it serves. Knows no server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.workload import Workload
from benchmarks.peers.servers import MODELS, Room

MIXED = "W6"
CLIENTS, PROMPTS = "clients", "prompts"
TEXT, PICTURES = "W2", "W4"
"""What W6 consists of."""
LOADS = {
    load.name: load
    for load in (
        Workload("W1", concurrency=1, requests=2, prompt_words=128, output_tokens=128),
        Workload("W2", concurrency=16, requests=64, prompt_words=256, output_tokens=64),
        Workload("W3", concurrency=8, requests=32, prompt_words=16, output_tokens=16, shared_prefix_words=1000),
        Workload("W4", concurrency=8, requests=32, prompt_words=6, output_tokens=16, images=1),
        Workload("W5", concurrency=8, requests=32, prompt_words=6, output_tokens=16, images=1, image_pool=4),
    )
}
CHOICES = (*LOADS, MIXED, CLIENTS, PROMPTS)
_CLIENTS = (1, 2, 4, 8, 16, 32, 64)
_PROMPT_TOKENS = (128, 256, 512, 1024, 2048, 4096)
_TEMPLATE_TOKENS = 32
"""What SmolLM2's chat template adds; a word is a token of its vocabulary."""
_OUTPUT_TOKENS = 16


@dataclass(frozen=True)
class Group:
    """Loads that one start of a server serves; ``mixed``: W6 after them."""

    title: str
    kind: str
    """Of MODELS."""
    room: Room
    loads: tuple[Workload, ...]
    mixed: bool = False


def groups(only: list[str] | None, home: Path) -> Iterator[Group]:
    """Those that hold what is asked for, W1 to W6 by default. ``home``: where the models are."""
    chosen = set(only or (*LOADS, MIXED))
    for kind, names, mixed in (("text", ("W1", "W2", "W3"), False), ("llava", ("W4", "W5"), MIXED in chosen)):
        loads = tuple(LOADS[name] for name in names if name in chosen)
        if loads or mixed:
            yield Group(f"workloads, {kind}", kind, Room(), loads, mixed)
    if CLIENTS in chosen:
        yield Group("growth with clients", "text", Room(512, 64), tuple(map(_of_clients, _CLIENTS)))
    if PROMPTS in chosen:
        most = json.loads((home / MODELS["text"] / "config.json").read_text())["max_position_embeddings"]
        lengths = [length for length in _PROMPT_TOKENS if _room_for(length).context_tokens <= most]
        yield Group("growth with prompts", "text", _room_for(lengths[-1]), tuple(map(_of_length, lengths)))


def _of_clients(count: int) -> Workload:
    return Workload(f"{count} clients", count, max(4, 2 * count), prompt_words=128, output_tokens=64)


def _of_length(num_tokens: int) -> Workload:
    return Workload(f"{num_tokens} tokens", 1, 3, num_tokens - _TEMPLATE_TOKENS, _OUTPUT_TOKENS)


def _room_for(num_tokens: int) -> Room:
    return Room(num_tokens + 2 * _TEMPLATE_TOKENS + _OUTPUT_TOKENS)
