"""Fetching images over real sockets on the loopback, from a server that misbehaves on demand."""

import asyncio
from base64 import b64encode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mmserve.httpserver.call import AllocVersion, MediaRef
from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.httpserver.media.addresses import AddressPolicy
from mmserve.httpserver.media.fetch import Fetcher
from mmserve.httpserver.media.local import read_file_url
from mmserve.httpserver.media.reader import MediaReader
from mmserve.runtime.errors import MediaError, MmserveError, TooLarge, Unavailable
from tests.fakes.models.chat_models import deployment_of, write_chat_model
from tests.fakes.pictures.media import png
from tests.fakes.processes.samples import Samples
from tests.fakes.processes.shortages import no_more_descriptors

PNG = png()
LOOPBACK = AddressPolicy(allow_loopback=True)
Serve = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def pages(path: bytes, writer: asyncio.StreamWriter) -> None:
    match path.split(b"?")[0].split(b"/")[1:]:
        case [b"a.png"]:
            writer.write(answer("200 OK", PNG))
        case [b"redirect", count]:
            target = f"/redirect/{int(count) - 1}" if int(count) > 1 else "/a.png"
            writer.write(answer("302 Found", b"", f"Location: {target}"))
        case [b"to", *rest]:
            writer.write(answer("307 Temporary Redirect", b"", f"Location: {b'/'.join(rest).decode()}"))
        case [b"nowhere"]:
            writer.write(answer("301 Moved"))
        case [b"large"]:
            writer.write(answer("200 OK", b"x" * 100_000))
        case [b"endless"]:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not writer.is_closing():
                writer.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
                await writer.drain()
        case [b"drip"]:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not writer.is_closing():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
        case [b"silent"]:
            await asyncio.sleep(60)
        case [b"gzip"]:
            writer.write(answer("200 OK", PNG, "Content-Encoding: gzip"))
        case [b"garbage"]:
            writer.write(b"\x00\x01 not http\r\n\r\n")
        case [b"short"]:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nshort")
            writer.close()
        case _:
            writer.write(answer("404 Not Found", b"secret internal page"))


class Site:
    """A tiny HTTP server; ``requests`` holds the request heads it saw."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.requested = asyncio.Event()
        self.connections = 0

    async def __aenter__(self) -> "Site":
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests.append(head)
                self.requested.set()
                await pages(head.split(b" ")[1], writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()


def with_site(scenario: Callable[[Site, Fetcher], Awaitable[Any]], *, policy: AddressPolicy = LOOPBACK) -> Any:
    async def run() -> Any:
        fetcher = Fetcher(policy, timeout_s=0.5)
        async with Site() as site:
            try:
                return await scenario(site, fetcher)
            finally:
                await fetcher.aclose()

    return asyncio.run(run())


def get(path: str, *, limit: int = 1_000_000, policy: AddressPolicy = LOOPBACK) -> bytes:
    async def scenario(site: Site, fetcher: Fetcher) -> bytes:
        return await fetcher.get(site.url(path), RequestByteLimit(limit))

    data: bytes = with_site(scenario, policy=policy)
    return data


def test_an_image_is_fetched() -> None:
    assert get("/a.png?size=large") == PNG
    assert get("/redirect/5") == PNG


def test_requests_carry_few_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def scenario(site: Site, fetcher: Fetcher) -> None:
        await fetcher.get(site.url("/a.png", host="localhost"), RequestByteLimit(10_000))
        await fetcher.get(site.url("/a.png", host="localhost"), RequestByteLimit(10_000))
        head = site.requests[0].decode().lower()
        assert f"host: localhost:{site.port}\r\n" in head
        assert "cookie" not in head
        assert "authorization" not in head
        assert "accept-encoding: identity" in head
        assert site.connections == 1

    with_site(scenario)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/missing", "answered 404"),
        ("/redirect/6", "redirects"),
        ("/nowhere", "redirects"),
        ("/silent", "within 0.5 s"),
        ("/drip", "within 0.5 s"),
        ("/gzip", "compressed"),
        ("/garbage", "no usable answer"),
        ("/short", "no usable answer"),
        ("/to/file:///etc/passwd", "http or https"),
        ("/to/http://user@127.0.0.1/", "user name"),
        ("/to/http://169.254.169.254/latest", "that address"),
        ("/to/http://10.0.0.1/", "that address"),
        ("/to/http://8.8.8.8:99999/", "no possible port"),
        ("/to/\\\\127.0.0.1", "backslash"),
    ],
)
def test_answers_without_an_image_are_refused(path: str, says: str) -> None:
    with pytest.raises(MediaError, match=says) as caught:
        get(path)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("path", ["/large", "/endless"])
def test_bodies_are_read_up_to_the_limit(path: str) -> None:
    with pytest.raises(TooLarge, match="MiB"):
        get(path, limit=50_000)


def test_loopback_addresses_are_refused_by_default() -> None:
    with pytest.raises(MediaError, match="that address"):
        get("/a.png", policy=AddressPolicy())
    assert get("/a.png", policy=AddressPolicy(["127.0.0.1"])) == PNG


def test_redirects_are_checked_against_the_list() -> None:
    async def scenario(site: Site, fetcher: Fetcher) -> None:
        with pytest.raises(MediaError, match="that host"):
            await fetcher.get(site.url(f"/to/{site.url('/a.png', host='localhost')}"), RequestByteLimit(10_000))
        assert len(site.requests) == 1

    with_site(scenario, policy=AddressPolicy(["127.0.0.1"]))


def test_a_cancelled_fetch_closes_its_connection() -> None:
    async def scenario(site: Site, fetcher: Fetcher) -> None:
        task = asyncio.create_task(fetcher.get(site.url("/silent"), RequestByteLimit(1000)))
        await site.requested.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await fetcher.get(site.url("/a.png"), RequestByteLimit(10_000)) == PNG

    with_site(scenario)


@pytest.mark.parametrize("alloc_version", ["v1", "v2"])
def test_a_reader_takes_mixed_sources_and_names_the_failing_image(tmp_path: Path, alloc_version: AllocVersion) -> None:
    deployment = deployment_of(write_chat_model(tmp_path), media_fetch_timeout=5.0, max_body_mb=1.0)

    async def run() -> None:
        samples = Samples()
        reader = MediaReader(deployment, samples, alloc_version, policy=LOOPBACK)  # type: ignore[arg-type]
        async with Site() as site:
            urls = [
                site.url("/a.png"),
                "data:;base64," + b64encode(PNG).decode(),
                site.url("/missing"),
                site.url("/silent"),
            ]
            refs = [MediaRef(url, f"part{index}") for index, url in enumerate(urls)]
            items = await reader.read([refs[0], refs[0]], "")
            assert [item.data for item in items] == [PNG, PNG]
            labelled = [(name, labels) for name, _, labels in samples.recorded]
            assert labelled == [("mm_fetch_seconds", (alloc_version,)), ("mm_hash_seconds", (alloc_version,))]
            # The failure ends the wait for the silent one.
            with pytest.raises(MmserveError, match="answered 404") as caught:
                await reader.read(refs, "")
            assert caught.value.param == "part2"
        await reader.aclose()

    asyncio.run(run())


def test_a_reader_fetches_from_allowed_domains_within_the_configured_time(tmp_path: Path) -> None:
    options = {"media_fetch_timeout": 0.25, "allowed_media_domains": ("127.0.0.1",)}
    deployment = deployment_of(write_chat_model(tmp_path), **options)

    async def run() -> None:
        reader = MediaReader(deployment, Samples())  # type: ignore[arg-type]
        async with Site() as site:
            (item,) = await reader.read([MediaRef(site.url("/a.png"), "part")], "")
            assert item.data == PNG
            with pytest.raises(MediaError, match="that host"):
                await reader.read([MediaRef(site.url("/a.png", host="localhost"), "part")], "")
            with pytest.raises(MediaError, match=r"within 0\.25 s"):
                await reader.read([MediaRef(site.url("/silent"), "part")], "")
        await reader.aclose()

    asyncio.run(run())


def test_without_descriptors_a_fetch_fails_with_503_and_later_ones_succeed() -> None:
    async def scenario(site: Site, fetcher: Fetcher) -> bytes:
        for host in ("127.0.0.1", "localhost"):
            with no_more_descriptors(), pytest.raises(Unavailable, match="out of file descriptors"):
                await fetcher.get(site.url("/a.png", host=host), RequestByteLimit(10_000))
        return await fetcher.get(site.url("/a.png"), RequestByteLimit(10_000))

    assert with_site(scenario) == PNG


def test_without_descriptors_a_file_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    url = f"file://{tmp_path}/a.png"
    with no_more_descriptors(), pytest.raises(Unavailable, match="out of file descriptors"):
        read_file_url(url, str(tmp_path), RequestByteLimit(10_000))
    assert read_file_url(url, str(tmp_path), RequestByteLimit(10_000)) == PNG
