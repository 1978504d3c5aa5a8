"""Host and Origin of requests to a server without API keys, and the content type of every POST."""

from __future__ import annotations

import socket

import pytest
from starlette.datastructures import Headers

from mmserve.config.config import Config
from mmserve.httpserver.http.browser_guard import BrowserGuard, require_json
from mmserve.runtime.errors import Forbidden, InvalidRequest, MmserveError, UnsupportedMediaType


def guard(**options: object) -> BrowserGuard:
    config = Config(**options)  # type: ignore[arg-type]
    return BrowserGuard(config.host, config.allowed_hosts, config.allowed_origins)


def admits(guard: BrowserGuard, *headers: tuple[str, str]) -> bool:
    try:
        guard.check(Headers(raw=[(name.encode(), value.encode()) for name, value in headers]))
    except Forbidden:
        return False
    return True


LOOPBACK = ["localhost", "LOCALHOST:8000", "localhost.", "a.localhost:1", "127.0.0.1:8000", "127.8.8.8", "[::1]:8000"]
OTHERS = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""]


@pytest.mark.parametrize("host", LOOPBACK)
def test_loopback_names_are_admitted(host: str) -> None:
    assert admits(guard(), ("host", host))


@pytest.mark.parametrize("host", [*OTHERS, "[::2]", "[", "a:b:c", "localhost@evil.example", "evil.example#localhost"])
def test_names_that_lead_here_by_dns_rebinding_are_refused(host: str) -> None:
    assert not admits(guard(), ("host", host))


def test_a_request_without_host_is_no_browsers() -> None:
    assert admits(guard())


def test_hosts_of_the_list_are_admitted() -> None:
    listed = guard(allowed_hosts=("gpu1.lan", "*.example.com"))
    hosts = ("gpu1.lan:8000", "a.example.com", "example.com", "gpu2.lan")
    assert [admits(listed, ("host", host)) for host in hosts] == [True, True, False, False]
    assert all(admits(guard(allowed_hosts=("*",)), ("host", host)) for host in OTHERS)


def test_the_listening_address_is_admitted() -> None:
    assert admits(guard(host="192.168.1.5"), ("host", "192.168.1.5:8000"))
    assert not admits(guard(host="192.168.1.5"), ("host", "192.168.1.6:8000"))
    assert admits(guard(host="Gpu1.lan"), ("host", "gpu1.lan"))
    assert admits(guard(host="::1"), ("host", "[::1]:8000"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_on_all_addresses_any_address_and_the_machines_name_are_admitted(host: str) -> None:
    open_guard = guard(host=host)
    assert all(admits(open_guard, ("host", each)) for each in ("10.0.0.1:8000", "[fd00::1]", socket.gethostname()))
    assert not admits(open_guard, ("host", "evil.example"))


HERE = ("host", "localhost:8000")


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost:3000",
        "http://localhost",
        "https://localhost",
        "null",
        "file://",
        "localhost:8000",
        "ftp://localhost:8000",
        "http://[",
        "",
    ],
)
def test_a_foreign_origin_is_refused(origin: str) -> None:
    assert not admits(guard(), HERE, ("origin", origin))


def test_the_servers_own_pages_and_listed_ones_are_admitted() -> None:
    assert admits(guard(), HERE, ("origin", "http://localhost:8000"))
    assert admits(guard(), ("host", "localhost"), ("origin", "http://localhost"))
    behind_tls = guard(allowed_hosts=("a.example",))
    assert admits(behind_tls, ("host", "a.example"), ("origin", "https://A.example"))
    assert admits(behind_tls, ("host", "a.example:443"), ("origin", "https://a.example"))
    listed = guard(allowed_origins=("https://app.example/", "app://obsidian"))
    assert admits(listed, HERE, ("origin", "https://app.example"))
    assert admits(listed, HERE, ("origin", "app://obsidian"))
    assert not admits(listed, HERE, ("origin", "https://app.example.evil"))
    assert admits(guard(allowed_origins=("*",)), HERE, ("origin", "null"))


def test_two_hosts_or_origins_are_refused() -> None:
    for name in ("host", "origin"):
        with pytest.raises(InvalidRequest):
            admits(guard(), HERE, (name, "localhost:8000"), (name, "http://localhost:8000"))


@pytest.mark.parametrize("type_", ["application/json", "Application/JSON", "application/json; charset=utf-8"])
def test_json_is_accepted(type_: str) -> None:
    require_json("POST", "/tokenize", Headers({"content-type": type_}))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": ""},
        {"content-type": "text/plain"},
        {"content-type": "text/plain; application/json"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/jsonp"},
    ],
)
def test_what_a_form_can_send_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(UnsupportedMediaType) as refused:
        require_json("POST", "/tokenize", Headers(headers))
    error: MmserveError = refused.value
    assert error.status == 415
    require_json("GET", "/tokenize", Headers(headers))


def test_only_an_upload_is_a_form() -> None:
    form = Headers({"content-type": "multipart/form-data; boundary=b"})
    require_json("POST", "/v1/files", form)
    for path in ("/v1/batches", "/v1/files/x", "/v1/chat/completions"):
        with pytest.raises(UnsupportedMediaType, match="application/json"):
            require_json("POST", path, form)
    with pytest.raises(UnsupportedMediaType, match="multipart/form-data"):
        require_json("POST", "/v1/files", Headers({"content-type": "application/json"}))
