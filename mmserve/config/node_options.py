"""Checks the options of servers on several machines; which ranks are on which node."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from mmserve.config.config import Config
from mmserve.runtime.errors import StartupError

_DEFAULT_PORT = 8100
_ENCODER_PORT = 8101


class Address(NamedTuple):
    """Of a TCP port. ``host``: a name or a number, an IPv6 one without brackets."""

    host: str
    port: int

    @property
    def endpoint(self) -> str:
        """As ZeroMQ writes it."""
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


def address_of(flag: str, text: str, default_port: int = _DEFAULT_PORT) -> Address:
    """Parse HOST or HOST:PORT. Raises StartupError that names ``flag``."""
    try:
        url = urlsplit(f"//{text}")
        host, port = url.hostname, url.port
    except ValueError:  # the port
        host = port = None
    if not host or port == 0 or url.path or url.query or url.fragment or "@" in text:
        raise StartupError(f"{flag} {text} is no address: write it as HOST:PORT")
    return Address(host, port or default_port)


def head_address(config: Config) -> Address:
    """Where node 0 listens for the others. Of a server with several nodes."""
    assert config.head is not None
    return address_of("--head", config.head)


def encoder_address(flag: str, text: str | None) -> Address:
    """Where the first visual server listens for encoders: of ``--encoders`` or ``--join``, which was given."""
    assert text is not None
    return address_of(flag, text, _ENCODER_PORT)


def ranks_of(config: Config, node: int) -> range:
    """The ranks on a node."""
    count = config.tp // config.nnodes
    return range(node * count, (node + 1) * count)


def check_nodes(config: Config) -> None:
    """Refuse nodes that cannot find each other or have no equal shares. Raises StartupError."""
    if config.node_rank >= config.nnodes:
        raise StartupError(
            f"--node-rank {config.node_rank} is not below --nnodes {config.nnodes}: nodes are counted from 0"
        )
    for flag, address in (("--encoders", config.encoders), ("--join", config.join)):
        if address is not None:
            encoder_address(flag, address)
            if config.cluster_key_file is None:
                raise StartupError(f"{flag} needs --cluster-key-file: without a key anybody could take part")
    if config.join is not None and (config.nnodes > 1 or config.encoders is not None):
        raise StartupError("--join is of mmserve encoder, which has neither ranks nor other encoders")
    if config.nnodes == 1:
        if config.head is not None:
            raise StartupError("--head needs --nnodes: without it there is one node")
        return
    if config.head is None:
        raise StartupError(f"--nnodes {config.nnodes} needs --head, the address of node 0 that all nodes can reach")
    if config.cluster_key_file is None:
        raise StartupError(
            f"--nnodes {config.nnodes} needs --cluster-key-file: without a key anybody could send ranks their work"
        )
    head_address(config)
    if config.tp % config.nnodes:
        raise StartupError(f"--tp {config.tp} does not divide by --nnodes {config.nnodes}: each node has as many ranks")
