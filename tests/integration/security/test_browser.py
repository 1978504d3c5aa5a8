"""What a page of another site achieves in a real browser. Skipped where no Chromium is installed.

``MMSERVE_TEST_BROWSER`` names the program if it is not on the PATH.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.fakes.http.http_upstream import say
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.fakes.processes.samples import Samples

BROWSER = os.environ.get("MMSERVE_TEST_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

ALLOC, CHAT = "/admin/alloc", "/v1/chat/completions"
ATTACKS = """<!doctype html><title>waits</title>
<iframe name="hidden"></iframe>
<form id="form" method="post" target="hidden" enctype="text/plain" action="TARGET/admin/alloc">
<input name='{"concurrent_alloc_fraction": 0, "x": "' value='"}'></form>
<script>
const chat = JSON.stringify({model: "llava", messages: [{role: "user", content: "hi"}]});
const alloc = JSON.stringify({concurrent_alloc_fraction: 0});
const json = {"content-type": "application/json"};
const attacks = [
  ["TARGET/admin/alloc", {method: "POST", mode: "no-cors", body: alloc}],
  ["TARGET/admin/alloc", {method: "POST", mode: "no-cors", body: new Blob([alloc])}],
  ["TARGET/admin/alloc", {method: "POST", headers: json, body: alloc}],
  ["TARGET/v1/chat/completions", {method: "POST", mode: "no-cors", body: chat}],
  ["TARGET/v1/chat/completions", {method: "POST", headers: json, body: chat}],
  ["TARGET/v1/models", {}],
];
(async () => {
  const results = [];
  for (const [url, options] of attacks)
    try { const answer = await fetch(url, options); results.push(answer.type + " " + answer.status); }
    catch (error) { results.push("blocked"); }
  const loaded = new Promise(resolve => document.querySelector("iframe").onload = resolve);
  document.getElementById("form").submit();
  await loaded;
  fetch("/report?" + results.map(encodeURIComponent).join("&"));
})();
</script>"""


@asynccontextmanager
async def _page(html: str) -> AsyncIterator[tuple[str, asyncio.Future[list[str]]]]:
    """Another site that serves one page. Yields its origin, and what the page reports at its end."""
    report: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        if path.startswith("/report?"):
            report.set_result([unquote(each) for each in path.removeprefix("/report?").split("&")])
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {len(html)}\r\nconnection: close\r\n\r\n"
        writer.write((head + html).encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://evil.example:{server.sockets[0].getsockname()[1]}", report


@asynccontextmanager
async def _visit(url: str, profile: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A browser that shows ``url``, with ``evil.example`` at this machine."""
    assert BROWSER is not None
    process = await asyncio.create_subprocess_exec(
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        f"--user-data-dir={profile}",
        "--host-resolver-rules=MAP evil.example 127.0.0.1",
        *options,
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(40):
            yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def _shown(url: str, profile: Path) -> str:
    """The page at ``url`` as HTML."""
    async with _visit(url, profile, "--dump-dom") as process:
        return (await process.communicate())[0].decode()


async def _attack(worker: Worker, profile: Path) -> list[str]:
    """What each attempt of the page achieves."""
    async with _page(ATTACKS.replace("TARGET", worker.url)) as (origin, report), _visit(origin, profile):
        return await report


def _recording(worker: Worker) -> Samples:
    samples = Samples()
    worker.context.metrics.add = samples.add  # type: ignore[method-assign]
    worker.upstream.behave = say("fine")
    return samples


def test_a_foreign_page_reads_and_changes_nothing_without_keys(tmp_path: Path) -> None:
    async def test() -> None:
        async with http_worker(enable_admin=True) as worker:
            samples = _recording(worker)
            assert await _attack(worker, tmp_path) == [
                "opaque 0",
                "opaque 0",
                "blocked",
                "opaque 0",
                "blocked",
                "blocked",
            ]
            assert not worker.upstream.requests()
            assert worker.context.alloc_paths.split.fraction == 1.0
            statuses = [labels[1] for name, _, labels in samples.recorded if name == "http_requests"]
            assert len(statuses) >= 7  # the browser did send them, preflights and the form among them
            assert set(statuses) == {"403"}

    run(test)


def test_a_listed_site_may_use_the_server(tmp_path: Path) -> None:
    """The same page succeeds there, which shows that it can."""

    async def test() -> None:
        async with http_worker(enable_admin=True, allowed_origins=("*",)) as worker:
            worker.upstream.behave = say("fine")
            results = await _attack(worker, tmp_path)
            assert [results[index] for index in (2, 4, 5)] == ["cors 200"] * 3
            assert len(worker.upstream.requests()) == 1
            assert worker.context.alloc_paths.split.fraction == 0.0

    run(test)


def test_dns_rebinding_reads_nothing(tmp_path: Path) -> None:
    """The name of another site leads to this server, as after the second look-up of an attack by rebinding."""

    async def test() -> None:
        async with http_worker() as worker:
            own = await _shown(f"{worker.url}/v1/models", tmp_path)
            assert "stub" in own
            rebound = await _shown(f"http://evil.example:{worker.port}/v1/models", tmp_path)
            assert "allowed-hosts" in rebound
            assert "stub" not in rebound

    run(test)
