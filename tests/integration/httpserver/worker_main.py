"""A whole HTTP worker as its own process: python -m ... DEPLOYMENT_FILE INDEX. Prints its port once it serves."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.process import Process
from mmserve.httpserver.run import run
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.codec import Codec


def main() -> None:
    codec: Codec[Deployment] = Codec(Deployment)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    process = Process(
        deployment=codec.decode(Path(sys.argv[1]).read_bytes()),
        role="httpserver",
        index=int(sys.argv[2]),
        ready=lambda details: print(port, flush=True),
        arena=Arena.create(1 << 16),
        listen_fd=listener.detach(),
    )
    run(process)


if __name__ == "__main__":
    main()
