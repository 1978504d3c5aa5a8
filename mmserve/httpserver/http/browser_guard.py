"""Refuses requests that a web page makes a browser send to a server without API keys.

A page of another site can send requests to ``localhost`` or to a private network, though it cannot read the answers.
Their Origin is that site. With DNS rebinding, the site's name leads to this server's address, and the browser takes the
server for a part of the site. The Host of such requests is that name. A page cannot forge either header. Both checks
are for a server without keys, because a page has no key to send.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from mmserve.runtime.errors import Forbidden, InvalidRequest, UnsupportedMediaType

ANY = "*"
UPLOAD_PATH = "/v1/files"
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


class BrowserGuard:
    """``listens_on``: the address of --host. ``allowed_hosts``: further names, ``*.example.com`` for those below one,
    ``*`` for any. ``allowed_origins``: sites whose pages may use the server, as ``https://example.com``, or ``*``.
    """

    def __init__(self, listens_on: str, allowed_hosts: Iterable[str], allowed_origins: Iterable[str]) -> None:
        own = _address(listens_on)
        names = {_host_name(host) for host in (listens_on, *allowed_hosts)}
        # A name can be rebound to another address, an address cannot.
        self._any_address = own is not None and own.is_unspecified
        if self._any_address:
            names.add(socket.gethostname().lower())
        self._any_host = ANY in names
        self._suffixes = (".localhost", *(name[1:] for name in names if name.startswith("*.")))
        self._names = names | {"localhost"}
        self._origins = frozenset(origin.rstrip("/").lower() for origin in allowed_origins)

    def check(self, headers: Headers) -> None:
        """Raise Forbidden for an unknown Host or a foreign Origin, InvalidRequest for more than one of either."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) > 1 or len(origins) > 1:
            raise InvalidRequest("the request has more than one Host or Origin header")
        if hosts and not self._knows_host(hosts[0]):
            raise Forbidden("this server does not answer to the name in the Host header: add it to --allowed-hosts")
        if origins and not self._knows_origin(origins[0].lower(), hosts[0].lower() if hosts else ""):
            raise Forbidden("pages of that Origin may not use this server: add it to --allowed-origins")

    def _knows_host(self, host: str) -> bool:
        name = _host_name(host)
        if self._any_host or name in self._names or name.endswith(self._suffixes):
            return True
        address = _address(name)
        return address is not None and (self._any_address or address.is_loopback)

    def _knows_origin(self, origin: str, host: str) -> bool:
        if ANY in self._origins or origin in self._origins:
            return True
        try:
            scheme, authority = urlsplit(origin)[:2]
        except ValueError:
            return False
        port = _DEFAULT_PORTS.get(scheme, "")
        return bool(port and host) and authority.removesuffix(port) == host.removesuffix(port)


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Tells browsers that pages of these origins may send any header, an API key among them, and read the answers."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=("x-request-id", "request-id", "retry-after"),
    )


def require_json(method: str, path: str, headers: Headers) -> None:
    """Raise UnsupportedMediaType for a POST that does not say it is JSON, or a form where a file is uploaded.

    Browsers send forms and texts to any site; for JSON they ask the site first. An upload from another site's page has
    no key, and its Origin is refused where there are no keys.
    """
    wanted = "multipart/form-data" if path == UPLOAD_PATH else "application/json"
    if method == "POST" and headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
        raise UnsupportedMediaType(f"send the body with 'Content-Type: {wanted}'")


def _host_name(host: str) -> str:
    """The host of ``name``, ``name:port``, ``[address]:port`` or an IPv6 address."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return (host if host.count(":") > 1 else host.partition(":")[0]).rstrip(".")


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None
