"""Policy for hosts and IP addresses that images may be fetched from. Pure: no DNS, no connections.

Two checks. The URL's host must be on the operator's list, if there is one. The address of the connection must be
public, so that a client cannot reach the server's private network. Only a listed IP literal (or ``localhost``) may be
private, because the operator named that address. A listed host name must resolve to a public address, because others
may control its DNS.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address

_NAT64 = IPv6Network("64:ff9b::/96")
_EXTRA_PRIVATE = tuple(
    ip_network(network) for network in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "fec0::/10", "3fff::/20")
)
"""Not private according to ``ipaddress`` in every Python version: protocol assignments (cloud metadata among them),
6to4 relays, the Azure host, site-local addresses, documentation."""


class AddressPolicy:
    """``listed``: exact hosts; empty allows any public host. ``allow_loopback`` is for tests and has no option."""

    def __init__(self, listed: Iterable[str] = (), *, allow_loopback: bool = False) -> None:
        self._listed = frozenset(_canonical(host) for host in listed)
        self._allow_loopback = allow_loopback

    def admits_host(self, host: str) -> bool:
        """True if a URL may name this host (host name or IP literal, as in the URL)."""
        return not self._listed or _canonical(host) in self._listed

    def admits_address(self, host: str, address: str) -> bool:
        """True if a connection for ``host`` may go to ``address`` (an IP address as text)."""
        target = ip_address(address)
        if is_public(target) or (self._allow_loopback and target.is_loopback):
            return True
        name = _canonical(host)
        names_address = _literal(name) == target or (name == "localhost" and target.is_loopback)
        return names_address and name in self._listed


def is_public(address: Address) -> bool:
    """True for globally routable unicast addresses. An IPv6 address that embeds IPv4 ones is as public as they are."""
    if isinstance(address, IPv6Address):
        if (embedded := _embedded_ipv4(address)) is not None:
            return is_public(embedded)
        if not all(is_public(inner) for inner in (address.sixtofour, *(address.teredo or ())) if inner is not None):
            return False
    if any(address in network for network in _EXTRA_PRIVATE):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address of a mapped or NAT64 address."""
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped


def _canonical(host: str) -> str:
    return host.strip().strip("[]").rstrip(".").lower()


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
