"""What parity, quality, idle and vs_peers conclude from what they measure."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import msgspec
import pytest

from benchmarks import idle, parity, quality
from benchmarks.answers.prompts import prompts
from benchmarks.answers.reference import Reference
from benchmarks.load.cpu import busy
from benchmarks.peers.limits import judged, ratios
from benchmarks.peers.loads import CLIENTS, PROMPTS, groups
from benchmarks.peers.servers import MODELS

REFERENCE = Reference(5, [1, 2, 3], ["", "a", "a\ufffd", "aßc"])


@pytest.mark.parametrize(
    ("text", "agreed"), [("aßc", 3), ("aßd", 2), ("x", 0), ("", 0), ("aßcd", 2), ("a", 2)]
)  # fmt: skip
def test_the_first_token_that_differs(text: str, agreed: int) -> None:
    assert REFERENCE.agreed_tokens(text) == agreed


def test_answers_are_equal_in_text_and_tokens() -> None:
    answers = [("aßc", 5, 3), ("aßc", 6, 3), ("aßc", 5, 2), ("a", 5, 3)]
    row = parity.compared("batch", answers, [REFERENCE] * 4)
    assert (row["equal"], row["wanted"]) == (1, 4)
    assert row["first difference, token"] == 2
    assert parity.compared("alone", answers[:1], [REFERENCE])["equal"] == 1


def test_prompts_differ_share_beginnings_and_come_from_the_seed() -> None:
    made = prompts(100, seed=1)
    assert made == prompts(100, seed=1) != prompts(100, seed=2)
    assert len(set(made)) == 100
    assert len({text[:200] for text in made if len(text) > 600}) < sum(len(text) > 600 for text in made)


def test_ratios_stand_beside_their_limits() -> None:
    ours = {"load": "W1", "server": "mmserve", "tokens_per_s": 32.0, "start_s": 3.0}
    theirs = {"load": "W1", "server": "vllm", "tokens_per_s": 16.0, "start_s": 10.0}
    assert ratios([ours, theirs])[0]["tokens_per_s"] == 2
    met = {row["figure"]: row["met"] for row in judged([ours, theirs], [])}
    assert met == {"tokens_per_s over vllm's": "yes", "start_s over vllm's": "no", "pss_mib over vllm's": "no"}
    assert judged([], [{"server": "mmserve", "itl_over_alone": 1.2}])[0]["met"] == "yes"


def test_prompts_grow_as_far_as_the_context_allows(tmp_path: Path) -> None:
    config = tmp_path / MODELS["text"] / "config.json"
    config.parent.mkdir(parents=True)
    config.write_bytes(msgspec.json.encode({"max_position_embeddings": 2048}))
    clients, lengths = groups([CLIENTS, PROMPTS], tmp_path)
    assert [load.concurrency for load in clients.loads] == [1, 2, 4, 8, 16, 32, 64]
    assert [load.name for load in lengths.loads] == ["128 tokens", "256 tokens", "512 tokens", "1024 tokens"]
    assert lengths.room.context_tokens <= 2048
    assert [group.mixed for group in groups(None, tmp_path)] == [False, True]


def test_a_busy_thread_shows_and_the_sum_is_the_last_row() -> None:
    stop = threading.Event()
    spinning = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
    spinning.start()
    try:
        assert sum(each.cpu_share for each in busy(os.getpid(), 0.2).values()) > 0
        rows = idle.watched(os.getpid(), 0.05)
    finally:
        stop.set()
        spinning.join()
    assert rows[-1]["process"] == "all"
    assert rows[-1]["pss_mib"] == pytest.approx(sum(float(str(row["pss_mib"])) for row in rows[:-1]))
    assert [row["met"] for row in idle.judged(rows)][1] == "yes"


def test_the_text_that_is_read_stays_as_it_is() -> None:
    """Perplexities of different days can be compared by its hash alone: an edit is a new text and needs a new name."""
    assert hashlib.sha256(quality.TEXT.read_bytes()).hexdigest()[:8] == "4488cf41"


def test_each_quantization_has_its_limits() -> None:
    row = {"quantization": "int8", "perplexity / none": 1.02, "tokens_per_s / none": 1.4, "tokens_per_s_16 / none": 1.0}
    assert [each["met"] for each in quality.judged([{"quantization": "none"}, row])] == ["no", "yes", "yes"]
