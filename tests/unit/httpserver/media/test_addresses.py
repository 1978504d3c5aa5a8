from ipaddress import ip_address

import pytest

from mmserve.httpserver.media.addresses import AddressPolicy, is_public

PRIVATE = [
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.0.8",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "168.63.129.16",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2001:0:7f00:1::80ff:fffe",
    "fe80::1",
    "fe80::1%lo",
    "fc00::1",
    "fec0::1",
    "feff::1",
    "3fff::1",
    "64:ff9b::a83f:8110",
    "ff02::1",
    "2001:db8::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses(address: str) -> None:
    assert not is_public(ip_address(address))
    assert not AddressPolicy().admits_address("example.com", address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))
    assert AddressPolicy().admits_address("example.com", address)


def test_without_a_list_any_host_is_admitted() -> None:
    assert AddressPolicy().admits_host("example.com")


def test_a_list_admits_exactly_its_hosts() -> None:
    policy = AddressPolicy(["Images.Example.com", "[2606:4700::1111]"])
    assert policy.admits_host("images.example.com")
    assert policy.admits_host("IMAGES.example.com.")
    assert policy.admits_host("2606:4700::1111")
    for other in ("example.com", "a.images.example.com", "images.example.com.evil.net", ""):
        assert not policy.admits_host(other)


def test_only_listed_literals_may_be_private() -> None:
    policy = AddressPolicy(["10.0.0.5", "localhost", "store.internal", "::1"])
    assert policy.admits_address("10.0.0.5", "10.0.0.5")
    assert policy.admits_address("localhost", "127.0.0.1")
    assert policy.admits_address("localhost", "::1")
    assert policy.admits_address("::1", "::1")
    # Neither a listed name nor another listed literal stands for it.
    assert not policy.admits_address("store.internal", "10.0.0.5")
    assert not policy.admits_address("store.internal", "127.0.0.1")
    assert not policy.admits_address("localhost", "10.0.0.5")
    assert not policy.admits_address("10.0.0.5", "127.0.0.1")
    assert not AddressPolicy().admits_address("localhost", "127.0.0.1")


def test_allow_loopback_admits_only_loopback() -> None:
    policy = AddressPolicy(allow_loopback=True)
    assert policy.admits_address("anything", "127.0.0.1")
    assert not policy.admits_address("anything", "10.0.0.1")
