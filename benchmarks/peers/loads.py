"""Groups of loads. One start of a server serves one group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.named import MIXED, WORKLOADS
from benchmarks.load.workload import Workload
from benchmarks.peers.servers import MODELS, Room

CLIENTS, PROMPTS = "clients", "prompts"
CHOICES = (*WORKLOADS, MIXED.name, CLIENTS, PROMPTS)
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
    chosen = set(only or (*WORKLOADS, MIXED.name))
    asked = [load for load in WORKLOADS.values() if load.name in chosen]
    for kind, mixed in (("text", False), ("llava", MIXED.name in chosen)):
        loads = tuple(load for load in asked if (load.images > 0) == (kind == "llava"))
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
