"""All internal addresses. They are files in the run directory, which the supervisor creates (0700) and removes."""

from __future__ import annotations

from pathlib import Path


def num_http_endpoints(http_workers: int) -> int:
    """One more than there are HTTP workers: while one is replaced, its successor uses the free one."""
    return http_workers + 1


class Endpoints:
    """Addresses inside one run directory."""

    def __init__(self, run_dir: str | Path) -> None:
        self.run_dir = Path(run_dir)

    def _ipc(self, name: str) -> str:
        return f"ipc://{self.run_dir / name}"

    @property
    def router(self) -> str:
        return self._ipc("router")

    @property
    def rank_results(self) -> Path:
        return self.run_dir / "rank-results"

    def rank(self, rank: int) -> Path:
        return self.run_dir / f"rank-{rank}"

    @property
    def node_plans(self) -> Path:
        """Where node 0 takes the plans for the ranks of other nodes."""
        return self.run_dir / "node-plans"

    @property
    def node_store(self) -> str:
        """Where node 0 takes the port of rank 0's store."""
        return self._ipc("node-store")

    def meeting(self, rank: int) -> str:
        """Where a rank is told at which store the ranks of several nodes meet."""
        return self._ipc(f"meeting-{rank}")

    def http(self, worker: int) -> str:
        return self._ipc(f"http-{worker}")

    def visual(self, worker: int) -> str:
        return self._ipc(f"visual-{worker}")

    def requests_http(self, worker: int) -> Path:
        """Unix socket of an HTTP worker's page, with ``--enable-admin``: its requests in flight."""
        return self.run_dir / f"http-{worker}.requests"

    @property
    def metrics(self) -> Path:
        """Directory with the metrics of each process, in files that the process maps."""
        return self.run_dir / "metrics"

    @property
    def health(self) -> str:
        return self._ipc("health")

    @property
    def metrics_http(self) -> Path:
        """Unix socket of the metrics server's HTTP page."""
        return self.run_dir / "metrics.http"

    @property
    def cache_rpc(self) -> Path:
        """Unix socket of the cache server's v1 RPC (rpyc)."""
        return self.run_dir / "cache.rpc"

    @property
    def cache_calls(self) -> Path:
        """Unix socket of the cache server's v2 RPC (length-framed msgpack)."""
        return self.run_dir / "cache.calls"

    @property
    def cache_holdings(self) -> str:
        """Where the cache server tells the router which embeddings it has, with ``--reports-endpoint``."""
        return self._ipc("cache-holdings")

    @property
    def cache_http(self) -> Path:
        """Unix socket of the cache server's HTTP page, with ``--enable-admin``: what is in the arena."""
        return self.run_dir / "cache.http"

    def heartbeat(self, process: str) -> Path:
        """File with the last heartbeat of the process, mapped by it."""
        return self.run_dir / f"beat-{process}"

    def fault(self, process: str) -> Path:
        """File mapped by the process with ``--fault-injection``: the fault armed for it (``ipc/faults.py``)."""
        return self.run_dir / f"fault-{process}"

    @property
    def health_url(self) -> Path:
        """File with the URL of the health port, for ``mmserve status``."""
        return self.run_dir / "health-url"

    @property
    def alloc_share(self) -> Path:
        """File mapped by all HTTP workers: one float, the share of requests that allocate through v2."""
        return self.run_dir / "alloc-share"

    @property
    def responses(self) -> Path:
        """SQLite file with the responses that clients may continue, shared by all HTTP workers."""
        return self.run_dir / "responses.db"

    def busy_cores(self, role: str) -> Path:
        """File mapped by ranks and visual servers: the number of cores each process of the role computes on now."""
        return self.run_dir / f"cores-{role}"

    def step_times(self) -> Path:
        """File mapped by ranks and visual servers on GPUs: how long the steps are that each rank computes now."""
        return self.run_dir / "step-times"

    def visual_work(self, worker: int) -> Path:
        """File mapped by one visual server, and by its successors: the images that it works on now."""
        return self.run_dir / f"visual-work-{worker}"
