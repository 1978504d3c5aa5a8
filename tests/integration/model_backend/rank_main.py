"""A rank as its own process, as the supervisor would start it: python -m ... DEPLOYMENT RANK ARENA_FD."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from mmserve.config.deployment import Deployment
from mmserve.config.process import Process, Stop
from mmserve.ipc.arena import Arena
from mmserve.ipc.codec import Codec
from mmserve.model_backend.run import run


def _stop(signum: int, frame: object) -> None:
    raise Stop


def main() -> None:
    file, rank, arena_fd = sys.argv[1:]
    codec: Codec[Deployment] = Codec(Deployment)
    signal.signal(signal.SIGTERM, _stop)
    process = Process(
        deployment=codec.decode(Path(file).read_bytes()),
        role="model_backend",
        index=int(rank),
        incarnation=3,
        ready=lambda details: print(json.dumps(details), flush=True),
        arena=Arena.attach(int(arena_fd)),
    )
    try:
        run(process)
    except Stop:
        print("stopped", flush=True)


if __name__ == "__main__":
    main()
