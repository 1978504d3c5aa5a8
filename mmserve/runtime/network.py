"""Which network interface of this machine reaches an address."""

from __future__ import annotations

import socket

import psutil

from mmserve.runtime.errors import StartupError


def resolved(host: str, port: int) -> tuple[int, str]:
    """Family and number of an address. Raises StartupError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise StartupError(f"the address {host} is unknown: {error}") from None
    return family, str(address[0])


def interface_towards(host: str, port: int) -> str:
    """Name of the interface from which packets to ``host`` leave; that of the address itself if it is this machine's.

    Raises StartupError if there is no way to it.
    """
    family, number = resolved(host, port)
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((number, port))  # sends nothing
            own = probe.getsockname()[0]
    except OSError as error:
        raise StartupError(f"there is no way to {host}: {error.strerror}") from None
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address.partition("%")[0] == own for address in addresses):
            return name
    raise StartupError(f"no network interface has the address {own}, from which {host} is reached")
