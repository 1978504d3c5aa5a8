"""``mmserve bench`` against a server that is not ours: what it asks for, what it prints and draws."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from PIL import Image

from tests.fakes.openai_server import MODEL, OpenAiServer, openai_server, pictures_of, text_of

PROBE_TOKENS = 1
"""What the questions that come before any load ask for."""
PATIENCE_S = 120


def bench(server: OpenAiServer, *arguments: str) -> str:
    command = [sys.executable, "-m", "mmserve", "bench", "--url", server.url, "--repeats", "1", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loads_of(printed: str) -> list[str]:
    """Those that have a row."""
    cells = [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("| ")]
    return [cell for cell in cells if cell != "load"]


def asked(server: OpenAiServer) -> Counter[tuple[int, int]]:
    """(tokens of the answer, pictures) of every request of a load -> how many."""
    kinds = ((body["max_tokens"], len(pictures_of(body))) for body in server.bodies)
    return Counter(kind for kind in kinds if kind[0] != PROBE_TOKENS)


def test_a_load_is_what_its_name_says_on_any_server(tmp_path: Path) -> None:
    plot = tmp_path / "bench.png"
    with openai_server() as server:
        printed = bench(server, "--load", "W1", "--load", "W4", "--requests", "3", "--plot", str(plot))
    # Each client once to warm up, then the three.
    assert asked(server) == {(128, 0): 1 + 3, (16, 1): 8 + 3}
    assert {body["model"] for body in server.bodies} == {MODEL}
    assert all(body["stream"] and body["ignore_eos"] for body in server.bodies)
    pictures = [url for body in server.bodies if body["max_tokens"] != PROBE_TOKENS for url in pictures_of(body)]
    assert len(set(pictures)) == len(pictures)
    # 128 tokens are 32 words where a word is four.
    lengths = [len(text_of(body).split()) for body in server.bodies if body["max_tokens"] == 128]
    assert lengths == [32] * 4
    assert loads_of(printed) == ["W1", "W4"]
    with Image.open(plot) as image:
        assert image.format == "PNG"


def test_measured_again_a_server_is_asked_nothing_that_it_may_remember() -> None:
    assert not _prompts() & _prompts()
    assert _prompts("--seed", "7") == _prompts("--seed", "7")


def _prompts(*arguments: str) -> set[str]:
    """Of one call."""
    with openai_server() as server:
        bench(server, "--load", "W1", "--requests", "2", *arguments)
    return {text_of(body) for body in server.bodies if body["max_tokens"] != PROBE_TOKENS}


def test_all_six_without_a_choice() -> None:
    with openai_server() as server:
        printed = bench(server, "--requests", "2")
    assert loads_of(printed) == ["W1", "W2", "W3", "W4", "W5", "W6"]
    # W6 is W2 twice, and no fewer pictures than W4 has clients; its own warm-up included.
    counts = asked(server)
    assert counts[64, 0] == 3 * (16 + 2)
    assert counts[16, 1] >= 2 * (8 + 2) + 2 * 8


def test_a_server_without_eyes_gets_text_alone() -> None:
    with openai_server(takes_pictures=False) as server:
        printed = bench(server, "--requests", "2")
    assert loads_of(printed) == ["W1", "W2", "W3"]
    assert all(f"{load} left out" in printed for load in ("W4", "W5", "W6"))
    assert not any(pictures for _, pictures in asked(server))


def test_nobody_there_is_said_in_a_line() -> None:
    with openai_server() as server:
        url = server.url
    command = [sys.executable, "-m", "mmserve", "bench", "--url", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode
    assert url in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
