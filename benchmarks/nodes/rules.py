"""A front that sends requests by chance, for comparison: all but the decision is the product's own front.

python -m benchmarks.nodes.rules random|two KEY_FILE URL...
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from mmserve.cluster.front.replicas import Replica
from mmserve.cluster.front.run import Front, FrontOptions
from mmserve.cluster.front.upstream import Upstream
from mmserve.cluster.scale.policy import Want
from mmserve.ipc.links import cluster_key
from mmserve.supervisor.startup.listen import listen, url_of


class ByChance:
    """A Placement. ``choices``: replicas drawn for each request, the least busy of which gets it."""

    def __init__(self, urls: Collection[str], choices: int) -> None:
        self._upstreams = {url: Upstream(url) for url in urls}
        self._choices = min(choices, len(urls))
        self._busy: Counter[str] = Counter()
        self._random = random.Random(1)

    @asynccontextmanager
    async def reserved(self, want: Want, failed: Collection[str]) -> AsyncIterator[tuple[str, Upstream]]:
        drawn = self._random.sample([*self._upstreams], self._choices)
        chosen = min(drawn, key=self._busy.__getitem__)
        self._busy[chosen] += 1
        try:
            yield chosen, self._upstreams[chosen]
        finally:
            self._busy[chosen] -= 1

    def failed(self, replica: str) -> None:
        """Nothing follows from it."""

    def answered(self, replica: str) -> None:
        """Nothing follows from it."""


async def _serve(rule: str, key_file: str, urls: list[str]) -> None:
    front = Front(FrontOptions(cluster_key.read(Path(key_file))))
    listener = listen("127.0.0.1", 0, "--port")
    async with front.listening():
        front.set_replicas([Replica.parse(url) for url in urls])
        front.placement = ByChance(urls, 1 if rule == "random" else 2)
        server = front.server(lambda: print(f"front is ready: {url_of(listener)}", flush=True))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop, 5.0)
        await server.serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2], sys.argv[3:]))
