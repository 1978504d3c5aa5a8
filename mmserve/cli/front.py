"""``mmserve front``: one address for several servers of one model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mmserve.runtime.errors import StartupError


def add_front(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "front",
        help="one address for several servers of one model",
        description="Send each request to the server that has its pictures, and go on at another when one dies.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--replica",
        action="append",
        required=True,
        metavar="URL[,REPORTS]",
        help="a server, http://HOST:PORT, and its --reports-endpoint, tcp://HOST:PORT; once for each",
    )
    parser.add_argument(
        "--cluster-key-file", required=True, metavar="FILE", help="a copy of the file that the servers have too"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 picks a free one")
    parser.add_argument("--allowed-hosts", default="", help="names in the Host header besides localhost and --host")
    parser.add_argument(
        "--allowed-origins", default="", help="sites whose pages may use it (CORS), with commas; *: any"
    )
    parser.add_argument("--max-body-mb", type=float, default=64.0, help="largest request body, MiB")
    parser.add_argument("--body-budget-mb", type=float, default=1024.0, help="all bodies under way together, MiB")
    parser.add_argument("--max-connections", type=int, default=4096, help="open connections before 503 and a close")
    parser.add_argument("--shutdown-timeout", type=float, default=30.0, help="seconds for answers under way at the end")


def front(arguments: argparse.Namespace) -> int:
    """Run the command until a signal ends it. Raises StartupError."""
    # Imported here: the server's libraries would slow down --help.
    from mmserve.cluster.front.replicas import Replica
    from mmserve.cluster.front.run import FrontOptions, run
    from mmserve.ipc.links import cluster_key
    from mmserve.runtime.logs import log
    from mmserve.supervisor.startup.listen import listen, url_of
    from mmserve.supervisor.startup.machine import allow_descriptors

    if not 0 <= arguments.port <= 65535:
        raise StartupError(f"--port {arguments.port} is no port")
    log.setup("front", "info", "text")
    options = FrontOptions(
        key=cluster_key.read(Path(arguments.cluster_key_file)),
        host=arguments.host,
        allowed_hosts=_listed(arguments.allowed_hosts),
        allowed_origins=_listed(arguments.allowed_origins),
        max_body_mb=arguments.max_body_mb,
        body_budget_mb=arguments.body_budget_mb,
        max_connections=arguments.max_connections,
        shutdown_timeout_s=arguments.shutdown_timeout,
    )
    try:
        replicas = [Replica.parse(each) for each in arguments.replica]
    except ValueError as error:
        raise StartupError(f"--replica {error}") from None
    allow_descriptors()
    listener = listen(arguments.host, arguments.port, "--port")
    run(
        options,
        replicas,
        listener,
        lambda: print(f"mmserve: front is ready: {url_of(listener)}, for {len(replicas)} replicas", flush=True),
    )
    return 0


def _listed(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())
