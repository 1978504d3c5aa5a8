"""Groups of loads. One start of a server serves one group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.named import LONG, MIXED, WORKLOADS
from benchmarks.load.workload import Workload
from benchmarks.peers.servers import MODELS, Capacity

CLIENTS, PROMPTS = "clients", "prompts"
CHOICES = (*WORKLOADS, MIXED.name, *LONG, CLIENTS, PROMPTS)
_LONG_CONTEXT = 8192
_CLIENTS = (1, 2, 4, 8, 16, 32, 64)
_PROMPT_TOKENS = (128, 256, 512, 1024, 2048, 4096)
_TEMPLATE_TOKENS = 32
"""At most the tokens that SmolLM2's chat template adds. A word is one token of its vocabulary."""
_OUTPUT_TOKENS = 16


@dataclass(frozen=True)
class Group:
    """Loads of one server start. ``mixed``: run W6 after them."""

    title: str
    kind: str
    """A key of MODELS."""
    capacity: Capacity
    loads: tuple[Workload, ...]
    mixed: bool = False


def groups(only: list[str] | None, home: Path) -> Iterator[Group]:
    """The groups of the chosen loads, W1 to W6 by default. ``home``: directory of the models."""
    chosen = set(only or (*WORKLOADS, MIXED.name))
    workloads = [load for load in WORKLOADS.values() if load.name in chosen]
    for kind, mixed in (("text", False), ("llava", MIXED.name in chosen)):
        loads = tuple(load for load in workloads if (load.images > 0) == (kind == "llava"))
        if loads or mixed:
            yield Group(f"workloads, {kind}", kind, Capacity(), loads, mixed)
    if long := tuple(load for load in LONG.values() if load.name in chosen):
        yield Group("long prompts and answers", "text", Capacity(_LONG_CONTEXT, 4), long)
    if CLIENTS in chosen:
        yield Group("growth with clients", "text", Capacity(512, 64), tuple(map(_of_clients, _CLIENTS)))
    if PROMPTS in chosen:
        most = json.loads((home / MODELS["text"] / "config.json").read_text())["max_position_embeddings"]
        lengths = [length for length in _PROMPT_TOKENS if _capacity_for(length).context_tokens <= most]
        yield Group("growth with prompts", "text", _capacity_for(lengths[-1]), tuple(map(_of_length, lengths)))


def _of_clients(count: int) -> Workload:
    return Workload(f"{count} clients", count, max(4, 2 * count), prompt_words=128, output_tokens=64)


def _of_length(num_tokens: int) -> Workload:
    return Workload(f"{num_tokens} tokens", 1, 3, num_tokens - _TEMPLATE_TOKENS, _OUTPUT_TOKENS)


def _capacity_for(num_tokens: int) -> Capacity:
    return Capacity(num_tokens + 2 * _TEMPLATE_TOKENS + _OUTPUT_TOKENS)
