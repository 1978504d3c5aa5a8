"""The evaluation of measurements in parity, quality, idle and vs_peers."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import msgspec
import pytest

from benchmarks.answers import parity, quality
from benchmarks.answers.prompts import prompts
from benchmarks.answers.reference import Reference
from benchmarks.load.cpu import cpu_use
from benchmarks.peers.limits import check_limits, ratios
from benchmarks.peers.loads import CLIENTS, PROMPTS, groups
from benchmarks.peers.servers import MODELS, Capacity, DoesNotStart, Peer, Setup, started
from benchmarks.processes import idle

REFERENCE = Reference(5, [1, 2, 3], ["", "a", "a\ufffd", "aßc"])


@pytest.mark.parametrize(
    ("text", "agreed"), [("aßc", 3), ("aßd", 2), ("x", 0), ("", 0), ("aßcd", 2), ("a", 2)]
)  # fmt: skip
def test_agreed_tokens_end_before_the_first_difference(text: str, agreed: int) -> None:
    assert REFERENCE.agreed_tokens(text) == agreed


def test_answers_are_equal_in_text_and_tokens() -> None:
    answers = [("aßc", 5, 3), ("aßc", 6, 3), ("aßc", 5, 2), ("a", 5, 3)]
    row = parity.compared("batch", answers, [REFERENCE] * 4)
    assert (row["equal"], row["wanted"]) == (1, 4)
    assert row["first difference, token"] == 2
    assert parity.compared("alone", answers[:1], [REFERENCE])["equal"] == 1


def test_prompts_are_distinct_share_beginnings_and_depend_on_the_seed() -> None:
    made = prompts(100, seed=1)
    assert made == prompts(100, seed=1) != prompts(100, seed=2)
    assert len(set(made)) == 100
    assert len({text[:200] for text in made if len(text) > 600}) < sum(len(text) > 600 for text in made)


def test_ratios_are_checked_against_their_limits() -> None:
    ours = {"load": "W1", "server": "mmserve", "tokens_per_s": 32.0, "start_s": 3.0}
    theirs = {"load": "W1", "server": "vllm", "tokens_per_s": 16.0, "start_s": 10.0}
    assert ratios([ours, theirs])[0]["tokens_per_s"] == 2
    met = {row["figure"]: row["met"] for row in check_limits([ours, theirs], [])}
    assert met == {
        "tokens_per_s over vllm's": "yes",
        "ttft_p50_ms over vllm's": "no",
        "start_s over vllm's": "no",
        "pss_mib over vllm's": "no",
    }
    assert check_limits([], [{"load": "W6", "server": "mmserve", "itl_over_alone": 1.2}])[0]["met"] == "yes"


def test_prompts_are_no_longer_than_the_context(tmp_path: Path) -> None:
    config = tmp_path / MODELS["text"] / "config.json"
    config.parent.mkdir(parents=True)
    config.write_bytes(msgspec.json.encode({"max_position_embeddings": 2048}))
    clients, lengths = groups([CLIENTS, PROMPTS], tmp_path)
    assert [load.concurrency for load in clients.loads] == [1, 2, 4, 8, 16, 32, 64]
    assert [load.name for load in lengths.loads] == ["128 tokens", "256 tokens", "512 tokens", "1024 tokens"]
    assert lengths.capacity.context_tokens <= 2048
    assert [group.mixed for group in groups(None, tmp_path)] == [False, True]


def test_a_busy_thread_shows_and_the_sum_is_the_last_row() -> None:
    stop = threading.Event()
    spinning = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
    spinning.start()
    try:
        assert sum(each.cpu_share for each in cpu_use(os.getpid(), 0.2).values()) > 0
        rows = idle.measure(os.getpid(), 0.05)
    finally:
        stop.set()
        spinning.join()
    assert rows[-1]["process"] == "all"
    assert rows[-1]["pss_mib"] == pytest.approx(sum(float(str(row["pss_mib"])) for row in rows[:-1]))


def test_an_idle_server_is_compared_with_its_limits() -> None:
    for cpu_percent, pss_mib, met in ((0.5, 800.0, ["yes", "yes"]), (1.5, 950.0, ["no", "no"])):
        rows = [{"process": "all", "cpu_percent": cpu_percent, "pss_mib": pss_mib}]
        assert [row["met"] for row in idle.check_limits(rows)] == met


def test_the_text_of_the_perplexity_is_not_edited() -> None:
    """Perplexities of different dates are comparable only for the same text. An edited text needs a new file name."""
    assert hashlib.sha256(quality.TEXT.read_bytes()).hexdigest()[:8] == "4488cf41"


def test_each_quantization_has_its_limits() -> None:
    row = {"quantization": "int8", "perplexity / none": 1.02, "tokens_per_s / none": 1.4, "tokens_per_s_16 / none": 1.0}
    assert [each["met"] for each in quality.check_limits([{"quantization": "none"}, row])] == ["no", "yes", "yes"]


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def test_a_peer_is_not_measured_where_another_server_answers(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Healthy) as other:
        threading.Thread(target=other.handle_request).start()
        setup = Setup(tmp_path, other.server_port, "float32")
        with (
            pytest.raises(DoesNotStart, match="another server answers"),
            started(Peer("peer", "/bin/true"), tmp_path, Capacity(), setup),
        ):
            pass


def test_a_peer_that_does_not_start_says_why(tmp_path: Path) -> None:
    """vLLM's warning of a low limit of open files was taken for the reason."""
    (tmp_path / "output").write_text("WARNING: errors like `OSError: Too many open files`\nValueError: no such model\n")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    with (
        pytest.raises(DoesNotStart, match="does not start: ValueError: no such model"),
        started(Peer("peer", "/bin/cat {model}"), tmp_path / "output", Capacity(), Setup(tmp_path, port, "float32")),
    ):
        pass
