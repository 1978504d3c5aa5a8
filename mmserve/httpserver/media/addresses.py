"""Which hosts and addresses images may be fetched from. Pure: resolves nothing, connects nowhere.

Two gates. A URL's host must be on the operator's list, when there is one. The address really connected to must be
public, so that a client cannot reach into the server's own network; only a listed IP literal (or ``localhost``) may
be private, because whoever lists it means it. A listed *name* must resolve to a public address: its DNS is not ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address

_NAT64 = IPv6Network("64:ff9b::/96")
_NOT_MEANT = tuple(
    ip_network(network) for network in ("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "fec0::/10", "3fff::/20")
)
"""What no list of Python's, or not that of every version, calls private: protocol assignments (a cloud's metadata
among them), 6to4 relays, Azure's host, site-local addresses, documentation."""


class AddressPolicy:
    """``listed``: exact hosts, empty for any public host. ``allow_loopback`` is for tests, never from configuration."""

    def __init__(self, listed: Iterable[str] = (), *, allow_loopback: bool = False) -> None:
        self._listed = frozenset(_canonical(host) for host in listed)
        self._allow_loopback = allow_loopback

    def admits_host(self, host: str) -> bool:
        """May a URL name this host (name or IP literal, as in the URL)?"""
        return not self._listed or _canonical(host) in self._listed

    def admits_address(self, host: str, address: str) -> bool:
        """May a connection for ``host`` go to ``address`` (textual, as resolved)?"""
        target = ip_address(address)
        if is_public(target) or (self._allow_loopback and target.is_loopback):
            return True
        name = _canonical(host)
        meant = _literal(name) == target or (name == "localhost" and target.is_loopback)
        return meant and name in self._listed


def is_public(address: Address) -> bool:
    """Globally routable unicast; an IPv6 address that stands for an IPv4 one is as public as that."""
    if isinstance(address, IPv6Address):
        if (alias := _alias(address)) is not None:
            return is_public(alias)
        if not all(is_public(inner) for inner in (address.sixtofour, *(address.teredo or ())) if inner is not None):
            return False
    if any(address in network for network in _NOT_MEANT):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def _alias(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that a mapped or NAT64 address is only another spelling of."""
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped


def _canonical(host: str) -> str:
    return host.strip().strip("[]").rstrip(".").lower()


def _literal(host: str) -> Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
