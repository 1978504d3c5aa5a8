"""The loads by name. A word of a prompt is one token in vocabularies of tens of thousands.

W1 one client, 128 words in and 128 tokens out. W2 16 clients, 256 in, 64 out. W3 8 clients, a shared prefix of 1,000
words, 16 out. W4 8 clients, 32 different 640x480 JPEGs, 16 out. W5 the same with 4 pictures. W6: W2 alone, then W2
while W4's clients run, at the same server. W7 one client, 7,800 words in and 256 tokens out. W8 one client, a text of
1,500 words twice in and 2,000 tokens out, which copy it for the most part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.load.workload import Workload


@dataclass(frozen=True)
class Mixed:
    """``text`` alone, then ``text`` again while the clients of ``pictures`` send requests."""

    name: str
    text: Workload
    pictures: Workload


def _by_name(*loads: Workload) -> dict[str, Workload]:
    return {load.name: load for load in loads}


WORKLOADS = _by_name(
    Workload("W1", concurrency=1, requests=2, prompt_words=128, output_tokens=128),
    Workload("W2", concurrency=16, requests=64, prompt_words=256, output_tokens=64),
    Workload("W3", concurrency=8, requests=32, prompt_words=16, output_tokens=16, shared_prefix_words=1000),
    Workload("W4", concurrency=8, requests=32, prompt_words=6, output_tokens=16, images=1),
    Workload("W5", concurrency=8, requests=32, prompt_words=6, output_tokens=16, images=1, image_pool=4),
)
LONG = _by_name(
    Workload("W7", concurrency=1, requests=1, prompt_words=7800, output_tokens=256),
    Workload("W8", concurrency=1, requests=1, prompt_words=0, output_tokens=2000, document_words=1500),
)
"""They need a context of 8,192 tokens."""
MIXED = Mixed("W6", WORKLOADS["W2"], WORKLOADS["W4"])
NAMED: Mapping[str, Workload | Mixed] = {
    **WORKLOADS,
    MIXED.name: MIXED,
    **LONG,
    **_by_name(
        Workload("single", concurrency=1, requests=8, prompt_words=32, output_tokens=64),
        Workload("text", concurrency=16, requests=64, prompt_words=64, output_tokens=48),
        Workload("prefix", concurrency=8, requests=32, prompt_words=8, output_tokens=16, shared_prefix_words=150),
        replace(WORKLOADS["W4"], name="images"),
        replace(WORKLOADS["W5"], name="repeated"),
    ),
}


def with_token_lengths(load: Workload, tokens_per_word: float) -> Workload:
    """The load with word counts divided by the tokens per word, so that prompts have the intended number of tokens."""

    def words(count: int) -> int:
        return max(1, round(count / tokens_per_word)) if count else 0

    return replace(load, prompt_words=words(load.prompt_words), shared_prefix_words=words(load.shared_prefix_words))
