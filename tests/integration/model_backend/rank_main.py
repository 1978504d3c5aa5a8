"""A rank as its own process, as the supervisor would start it: python -m ... DEPLOYMENT RANK ARENA_FD.

Rank 1 cannot prepare a step with a sequence whose prompt starts with BAD_TOKEN.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.process import Process, Stop
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.codec import Codec
from mmserve.messages.step import SequenceStep
from mmserve.model_backend.run import run
from mmserve.model_backend.worker.forward_batch import ForwardBatch
from mmserve.model_backend.worker.model_runner import ModelRunner

BAD_TOKEN = 3


def _stop(signum: int, frame: object) -> None:
    raise Stop


def _refuse_bad_tokens() -> None:
    build = ModelRunner._build

    def build_or_fail(self: ModelRunner, steps: list[SequenceStep]) -> ForwardBatch:
        assert all(self._input_batch[step.slot].tokens[0] != BAD_TOKEN for step in steps), "as it happens"
        return build(self, steps)

    ModelRunner._build = build_or_fail  # type: ignore[method-assign,assignment]


def main() -> None:
    file, rank, arena_fd = sys.argv[1:]
    if rank == "1":
        _refuse_bad_tokens()
    codec: Codec[Deployment] = Codec(Deployment)
    signal.signal(signal.SIGTERM, _stop)
    process = Process(
        deployment=codec.decode(Path(file).read_bytes()),
        role="model_backend",
        index=int(rank),
        ready=lambda details: print(json.dumps(details), flush=True),
        arena=Arena.attach(int(arena_fd)),
        rendezvous=Path(file).with_name("ranks"),
    )
    try:
        run(process)
    except Stop:
        print("stopped", flush=True)


if __name__ == "__main__":
    main()
