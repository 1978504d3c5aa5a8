"""Refusals before any connection is made."""

import asyncio

import pytest

from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.httpserver.media.addresses import AddressPolicy
from mmserve.httpserver.media.fetch import Fetcher
from mmserve.runtime.errors import MediaError


def refusal(url: str, policy: AddressPolicy | None = None) -> str:
    async def run() -> str:
        fetcher = Fetcher(policy or AddressPolicy(), timeout_s=5)
        try:
            with pytest.raises(MediaError) as caught:
                await fetcher.get(url, RequestByteLimit(1000))
            return caught.value.message
        finally:
            await fetcher.aclose()

    return asyncio.run(run())


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "0",
        "localhost",
        "LOCALHOST.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::]",
        "169.254.169.254",
        "10.0.0.1:8000",
        "100.64.0.1",
        "224.0.0.1",
        "１２７.0.0.1",
        "127。0。0。1",
        "127%2e0.0.1",
    ],
)
def test_private_addresses_are_refused_in_every_spelling(host: str) -> None:
    message = refusal(f"http://{host}/a.png")
    assert "address" in message or "not valid" in message or "no usable answer" in message
    assert "127" not in message


@pytest.mark.parametrize(
    "url",
    [
        "http://allowed.example@127.0.0.1/a.png",
        "http://user:password@allowed.example/a.png",
        "http://allowed.example\\@127.0.0.1/a.png",
        "http:\\\\127.0.0.1\\a.png",
        "http://127.0.0.1\t/a.png",
        "http://127.0.0.1/\r\nHost: allowed.example",
        "http:///a.png",
        "http://",
        "https:a.png",
        "http://[::1/a.png",
        "http://a.example:99999/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:99999999999999999999/",
        "http://127.0.0.1:0/",
    ],
)
def test_urls_that_parsers_read_differently_are_refused(url: str) -> None:
    message = refusal(url, AddressPolicy(["allowed.example"]))
    assert "password" not in message


def test_hosts_off_the_list_are_refused() -> None:
    policy = AddressPolicy(["allowed.example"])
    for host in ("other.example", "allowed.example.evil.example", "8.8.8.8", "localhost"):
        assert "that host" in refusal(f"https://{host}/a.png", policy)


def test_a_listed_name_on_a_private_address_is_refused() -> None:
    policy = AddressPolicy(["127.0.0.1.example", "localhost.", "127.0.0.2"])
    assert "that host" in refusal("http://127.0.0.1/", policy)


def test_an_unknown_name_is_refused() -> None:
    assert "no usable answer" in refusal("http://does-not-exist.invalid/a.png")
