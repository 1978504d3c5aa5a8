"""TCP sockets that listen before the model is loaded, and that children inherit."""

from __future__ import annotations

import errno
import socket

from mmserve.runtime.errors import StartupError

_BACKLOG = 2048
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def listen(host: str, port: int, flag: str) -> socket.socket:
    """A listening socket. Raises StartupError that names ``flag`` if the port is not available."""
    sock = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # Two sockets can be bound to a port, but only one can listen.
        sock.listen(_BACKLOG)
    except (OSError, UnicodeError) as error:
        if sock is not None:
            sock.close()
        raise StartupError(_refusal(host, port, flag, error)) from None
    return sock


def url_of(sock: socket.socket) -> str:
    """URL of the socket for clients on this machine."""
    host, port = sock.getsockname()[:2]
    host = _ANY.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _refusal(host: str, port: int, flag: str, error: Exception) -> str:
    code = getattr(error, "errno", None)
    if isinstance(error, socket.gaierror | UnicodeError) or code == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine: try 127.0.0.1, or 0.0.0.0 for all"
    if code == errno.EADDRINUSE:
        return f"{flag} {port} on {host} is in use: choose another, or 0 for a free one"
    if code == errno.EACCES:
        return f"{flag} {port} needs privileges: choose one above 1023"
    return f"{flag} {port} on {host} cannot be listened on: {error}"
