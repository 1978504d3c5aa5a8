"""``mmserve bench`` against a fake OpenAI-style server: what it sends, prints and writes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmserve.cli.bench.client import run, run_at
from mmserve.cli.bench.command import LATE_STATUS
from mmserve.cli.main import main
from tests.fakes.http.openai_server import MODEL, OpenAiServer, openai_server, pictures_of, text_of


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAiServer]:
    with openai_server() as server:
        yield server


@pytest.fixture(autouse=True)
def _no_bodies(server: OpenAiServer) -> None:
    server.bodies.clear()


def _bench(*arguments: str) -> int:
    return main(["bench", "--num-prompts", "6", "--output-tokens", "4", "--no-progress", *arguments])


def _of_runs(server: OpenAiServer) -> list[dict[str, Any]]:
    """Bodies without the two that count tokens, that which asks for stages, and the warm-up of four."""
    return server.bodies[7:]


def test_a_sweep_measures_every_level(server: OpenAiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--json", str(tmp_path / "a.jsonl"), "--html", str(tmp_path / "a.html")]
    limits = ["--goodput", "ttft:60000,e2el:60000"]
    assert _bench("--url", f"{server.url}/v1", "--concurrency", "1,3", "--input-tokens", "40", *limits, *files) == 0
    assert len({text_of(body) for body in _of_runs(server)}) == 12, "no level repeats the prompts of another"
    assert {body["model"] for body in server.bodies} == {MODEL}
    # The fake server counts four tokens for a word.
    assert {len(text_of(body).split()) for body in _of_runs(server)} == {10}
    printed = capsys.readouterr().out
    assert [line.split("  ")[0] for line in printed.splitlines()] == ["times in ms", "1 client", "3 clients"]
    objects = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [one["max_concurrency"] for one in objects] == [1, 3]
    assert all(one["completed"] == 6 and one["total_output_tokens"] == 24 for one in objects)
    assert all(one["request_goodput"] == pytest.approx(one["request_throughput"]) for one in objects)
    assert all(one["p99_ttft_ms"] > 0 for one in objects)
    assert "<svg" in (tmp_path / "a.html").read_text()


def test_servers_are_compared_in_turn(server: OpenAiServer, capsys: pytest.CaptureFixture[str]) -> None:
    with openai_server() as other:
        status = _bench("--compare", server.url, other.url, "--request-rate", "inf", "--repeats", "2", "--seed", "3")
        assert status in (0, 3)  # 3: on a busy machine the client is late, which is another test's subject
        assert _of_runs(server) != []
        assert sorted(map(text_of, server.bodies)) == sorted(map(text_of, other.bodies))
        assert len({text_of(body) for body in _of_runs(server)}) == 12
    assert f"{server.url}, inf requests/s" in capsys.readouterr().out


def test_a_server_is_compared_with_itself(server: OpenAiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench("--compare", server.url, f"{server.url}/v1") == 0
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [f"{server.url} (1), 16 clients", f"{server.url} (2), 16 clients"]


def test_pictures_come_from_a_directory(server: OpenAiServer, tmp_path: Path) -> None:
    for colour in ("red", "blue"):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{colour}.png")
    assert _bench("--url", server.url, "--image-dir", str(tmp_path), "--num-prompts", "60") == 0
    assert len({url for body in _of_runs(server) for url in pictures_of(body)}) == 2


def test_failures_are_counted_and_end_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    with openai_server(takes_pictures=False) as server:
        assert _bench("--url", server.url, "--images", "1", "--image-size", "8x8", "--concurrency", "1,2") == 1
    printed = capsys.readouterr().out
    assert "2 clients" not in printed
    assert "failed: 6 x 400" in printed
    assert "no pictures here" in printed


def test_a_client_that_is_late_says_that_the_figures_are_its_own(
    server: OpenAiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Something holds up the client's event loop for longer than requests are apart.
    monkeypatch.setattr("tqdm.tqdm.update", lambda bar, count=1: time.sleep(0.1))
    files = ["--json", str(tmp_path / "a.jsonl"), "--html", str(tmp_path / "a.html")]
    assert _bench("--url", server.url, "--request-rate", "50", *files) == LATE_STATUS
    printed = capsys.readouterr().out
    assert "warning: 50 requests/s: these are NOT the server's figures: the client sent requests up to" in printed
    (found,) = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert "after their time" in found["mmserve"]["client_late"]
    assert 'role="alert"' in (tmp_path / "a.html").read_text()


def test_a_server_that_says_where_time_goes_is_asked(tmp_path: Path) -> None:
    with openai_server(stages_ms={"queue": 1.0, "decode": 2.0}) as server:
        assert _bench("--url", server.url, "--json", str(tmp_path / "a.jsonl")) == 0
    (found,) = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    stages_ms = found["mmserve"]["stages_ms"]
    assert (stages_ms["queue"], stages_ms["decode"]) == (1.0, 2.0)
    assert found["mmserve"]["client_late"] is None


def test_a_server_that_refuses_to_say_where_time_goes_is_not_asked_again(tmp_path: Path) -> None:
    with openai_server(knows_timing=False) as server:
        assert _bench("--url", server.url, "--html", str(tmp_path / "a.html")) == 0
        assert sum("include_timing" in body["stream_options"] for body in server.bodies) == 1
    assert "No chart of stages" in (tmp_path / "a.html").read_text()


def test_a_server_that_is_not_there_is_named(server: OpenAiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench("--url", "http://127.0.0.1:9") == 1
    assert "http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    [
        ["--concurrency", "0"],
        ["--concurrency", "1", "--request-rate", "1"],
        ["--request-rate", "x"],
        ["--max-concurrency", "3"],
        ["--goodput", "itl:3"],
        ["--goodput", "ttft"],
        ["--image-size", "8"],
        ["--extra", "[]"],
        ["--repeats", "0"],
        ["--compare", "http://127.0.0.1:9"],
    ],
)
def test_wrong_flags_are_named(server: OpenAiServer, wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _bench("--url", server.url, *wrong) == 2
    assert wrong[-2] in capsys.readouterr().err


def test_an_open_loop_sends_at_its_times_and_counts_from_them(server: OpenAiServer) -> None:
    bodies = [{"max_tokens": 1, "messages": [{"content": []}]}] * 3
    records, wall_s = asyncio.run(run_at(server.url, bodies, [0.0, 0.2, 0.2], 1, 20))
    assert wall_s >= 0.2
    assert [record.start_s for record in records] == [0.0, 0.2, 0.2]
    assert all(0 <= record.late_s <= record.end_s for record in records)
    first, last = sorted(records[1:], key=lambda record: record.end_s)
    assert last.ttft_s > first.end_s, "it waited for the one before it, and that counts"


def test_a_connection_that_breaks_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for reply in (b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\ndata: {}\n", b"hello\r\n\r\n"):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        records, _ = asyncio.run(run(url, [{}] * 3, 1, 20))
        thread.join()
    assert [bool(record.error) for record in records] == [True] * 3
    assert "HTTP" in records[2].error
