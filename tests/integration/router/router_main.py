"""The router as its own process, as the supervisor would start it: python -m ... DEPLOYMENT_FILE."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.process import Process, Stop
from mmserve.ipc.links.codec import Codec
from mmserve.router.run import run


def _stop(signum: int, frame: object) -> None:
    raise Stop


def main() -> None:
    codec: Codec[Deployment] = Codec(Deployment)
    signal.signal(signal.SIGTERM, _stop)
    process = Process(
        deployment=codec.decode(Path(sys.argv[1]).read_bytes()),
        role="router",
        index=0,
        ready=lambda details: print(json.dumps(details), flush=True),
    )
    run(process)
    print("stopped", flush=True)


if __name__ == "__main__":
    main()
