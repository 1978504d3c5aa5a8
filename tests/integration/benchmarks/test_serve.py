"""``benchmarks.serve`` against a fake OpenAI-compatible server: the requests it sends, the table and plot it makes."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from PIL import Image

from tests.fakes.http.openai_server import MODEL, OpenAiServer, openai_server, pictures_of, text_of

PROBE_TOKENS = 1
"""``max_tokens`` of the requests that are sent before the loads, to learn what the server supports."""
TIMEOUT_S = 120


def bench(server: OpenAiServer, *arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.serve", "--url", server.url, "--repeats", "1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loads_of(printed: str) -> list[str]:
    """Names of the loads that have a row in the printed table."""
    cells = [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("| ")]
    return [cell for cell in cells if cell != "load"]


def asked(server: OpenAiServer) -> Counter[tuple[int, int]]:
    """(max_tokens, number of pictures) -> how many requests of loads were sent with them."""
    kinds = ((body["max_tokens"], len(pictures_of(body))) for body in server.bodies)
    return Counter(kind for kind in kinds if kind[0] != PROBE_TOKENS)


def test_named_loads_send_the_requests_that_they_describe(tmp_path: Path) -> None:
    plot = tmp_path / "bench.png"
    with openai_server() as server:
        printed = bench(server, "--load", "W1", "--load", "W4", "--requests", "3", "--plot", str(plot))
    # Each client sends one request to warm up; then come the three.
    assert asked(server) == {(128, 0): 1 + 3, (16, 1): 8 + 3}
    assert {body["model"] for body in server.bodies} == {MODEL}
    assert all(body["stream"] and body["ignore_eos"] for body in server.bodies)
    pictures = [url for body in server.bodies if body["max_tokens"] != PROBE_TOKENS for url in pictures_of(body)]
    assert len(set(pictures)) == len(pictures)
    # 128 tokens are 32 words: the fake server counts four tokens per word.
    lengths = [len(text_of(body).split()) for body in server.bodies if body["max_tokens"] == 128]
    assert lengths == [32] * 4
    assert loads_of(printed) == ["W1", "W4"]
    with Image.open(plot) as image:
        assert image.format == "PNG"


def test_each_run_sends_new_prompts_unless_the_seed_is_given() -> None:
    assert not _prompts() & _prompts()
    assert _prompts("--seed", "7") == _prompts("--seed", "7")


def _prompts(*arguments: str) -> set[str]:
    """Prompts of one run with these arguments."""
    with openai_server() as server:
        bench(server, "--load", "W1", "--requests", "2", *arguments)
    return {text_of(body) for body in server.bodies if body["max_tokens"] != PROBE_TOKENS}


def test_all_six_loads_run_by_default() -> None:
    with openai_server() as server:
        printed = bench(server, "--requests", "2")
    assert loads_of(printed) == ["W1", "W2", "W3", "W4", "W5", "W6"]
    # W6 runs W2 twice, with warm-up, and sends at least one picture for each client of W4.
    counts = asked(server)
    assert counts[64, 0] == 3 * (16 + 2)
    assert counts[16, 1] >= 2 * (8 + 2) + 2 * 8


def test_a_server_that_refuses_images_gets_only_text_loads() -> None:
    with openai_server(takes_pictures=False) as server:
        printed = bench(server, "--requests", "2")
    assert loads_of(printed) == ["W1", "W2", "W3"]
    assert all(f"{load} left out" in printed for load in ("W4", "W5", "W6"))
    assert not any(pictures for _, pictures in asked(server))


def test_an_unreachable_server_is_reported_in_one_line() -> None:
    with openai_server() as server:
        url = server.url
    command = [sys.executable, "-m", "benchmarks.serve", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode
    assert url in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
