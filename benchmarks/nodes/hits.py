"""Hit rates of three nodes behind a front, by its rule and by chance, beside one big server and the simulator."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.load import report
from benchmarks.load.cpu import cpu_spent
from benchmarks.nodes.cluster import Cluster, cluster, metric
from benchmarks.nodes.namespaces import network
from benchmarks.nodes.workload import zipf_bodies
from benchmarks.processes.scale_sim import Setting, Simulation
from mmserve.cli.bench.client import run

NODES = 3
RULES = ("seconds", "two", "random")
"""Of the front: the product's, the less busy of two at random, and one at random."""
PICTURES, ZIPF = 200, 1.0
KV_GB, ARENA_GB, SLOTS = 0.07, 0.005, 32
"""Of a node: room for about 80 pictures in each of the two, beside what its requests need."""
KEPT = 80
_TIMEOUT_S = 120.0
_SEED = 7


@dataclass(frozen=True)
class Measured:
    """``embeddings``: share of requests whose picture was not encoded; ``prefix``: share of prompt tokens in the prefix
    cache. ``served``: by each node. Seconds are means."""

    failed: int
    embeddings: float
    prefix: float
    requests_per_s: float
    requests_per_cpu_s: float
    ttft_p99_s: float
    served: list[float]
    encode_s: float
    answer_s: float
    cpu_ms: dict[str, float]
    """A request, by the kind of process."""

    @property
    def imbalance(self) -> float:
        """The busiest node's requests, as a multiple of the mean."""
        return max(self.served) / fmean(self.served)


def options(share: int) -> tuple[str, ...]:
    """Of a server with the memory and slots of ``share`` nodes."""
    return (
        "--kv-cache-gb", f"{KV_GB * share:g}", "--mm-cache-gb", f"{ARENA_GB * share:g}",
        "--max-num-seqs", str(SLOTS * share), "--cpu-threads", "1" if share == 1 else "2",
    )  # fmt: skip


def measure(directory: Path, rule: str, clients: int, requests: int) -> Measured:
    """``rule``: that of the front; ``big``: one server with the memory of all; ``alone``: one of the nodes, with its
    share of the clients. These two have no front."""
    count = NODES if rule in RULES else 1
    share = NODES if rule == "big" else 1
    if rule == "alone":
        clients //= NODES
    with contextlib.ExitStack() as stack:
        machines = stack.enter_context(network(count))
        stack.enter_context(machines.from_switch())
        made = stack.enter_context(cluster(machines, directory, count, *options(share)))
        if count == 1:
            url, pids = made.nodes[0].url, [made.nodes[0].pid]
        else:
            front = stack.enter_context(made.front(rule))
            url, pids = front.url, [front.pid, *(each.pid for each in made.nodes.values())]
        return _loaded(made, url, pids, clients, requests)


def _loaded(made: Cluster, url: str, pids: list[int], clients: int, requests: int) -> Measured:
    bodies = zipf_bodies(requests, PICTURES, ZIPF, _SEED)
    with contextlib.ExitStack() as stack:
        spent = [stack.enter_context(cpu_spent(pid)) for pid in pids]
        records, wall_s = asyncio.run(run(url, bodies, clients, _TIMEOUT_S))
    good = [record for record in records if not record.error]
    cpu_s = Counter[str]()
    for each in spent:
        for title, seconds in each.items():
            cpu_s[_kind(title)] += seconds
    for error in {record.error for record in records if record.error}:
        print(f"  {error}")
    return Measured(
        failed=len(records) - len(good),
        embeddings=1 - _sum(made, "mm_images_encoded_total") / requests,
        prefix=_sum(made, "prefix_cache_hits_total") / _sum(made, "prefix_cache_queries_total"),
        requests_per_s=len(good) / wall_s,
        requests_per_cpu_s=len(good) / cpu_s.total(),
        ttft_p99_s=report.percentile([record.ttft_s for record in good], 0.99),
        served=[metric(each.url, "request_success_total") for each in made.nodes.values()],
        encode_s=(_sum(made, "mm_decode_seconds_sum") + _sum(made, "mm_encode_seconds_sum"))
        / _sum(made, "mm_images_encoded_total"),
        answer_s=_mean(made, "request_inference_time_seconds"),
        cpu_ms={kind: 1e3 * seconds / requests for kind, seconds in cpu_s.items()},
    )


def _kind(title: str) -> str:
    """Of a process: as its title says, without numbers."""
    return " ".join(word for word in title.split() if not word.isdigit())


def _sum(made: Cluster, name: str) -> float:
    return sum(metric(each.url, name) for each in made.nodes.values())


def _mean(made: Cluster, histogram: str) -> float:
    return _sum(made, f"{histogram}_sum") / max(1.0, _sum(made, f"{histogram}_count"))


def simulated(measured: Measured, rule: str, requests: int) -> tuple[float, float]:
    """Hit rate and imbalance of the same cluster and load in the simulator."""
    nodes = 1 if rule == "alone" else NODES
    setting = Setting(
        nodes,
        PICTURES,
        requests,
        kept=KEPT,
        zipf=ZIPF,
        rho=measured.requests_per_s * measured.answer_s / (SLOTS * nodes),
        slots=SLOTS,
        encode_s=measured.encode_s,
        answer_s=measured.answer_s,
        seed=_SEED,
    )
    outcome = Simulation(setting, rule if rule in RULES else "one").run()
    return outcome.hits / requests, max(outcome.served) / fmean(outcome.served)


def rows(directory: Path, clients: int, requests: int) -> tuple[list[report.Row], list[report.Row]]:
    """One for each rule; and where the CPU time of a request went."""
    found = {rule: measure(directory, rule, clients, requests) for rule in ("big", "alone", *RULES)}
    kinds = dict.fromkeys(kind for each in found.values() for kind in each.cpu_ms)
    spent: list[report.Row] = [
        {"rule": rule, **{kind: each.cpu_ms.get(kind, 0.0) for kind in kinds}} for rule, each in found.items()
    ]
    return [_row(rule, each, found["big"], requests) for rule, each in found.items()], spent


def _row(rule: str, each: Measured, big: Measured, requests: int) -> report.Row:
    hit, imbalance = simulated(each, rule, requests)
    return {
        "rule": rule,
        "failed": each.failed,
        "embeddings": f"{each.embeddings:.3f}",
        "of big": f"{each.embeddings / big.embeddings:.2f}",
        "prefix": f"{each.prefix:.3f}",
        "prefix of big": f"{each.prefix / big.prefix:.2f}",
        "requests/s": each.requests_per_s,
        "requests per CPU s": each.requests_per_cpu_s,
        "work per core of big": f"{each.requests_per_cpu_s / big.requests_per_cpu_s:.2f}",
        "TTFT p99 s": each.ttft_p99_s,
        "most / mean": f"{each.imbalance:.2f}",
        "encode ms": each.encode_s * 1e3,
        "answer ms": each.answer_s * 1e3,
        "simulated hit": f"{hit:.3f}",
        "simulated most / mean": f"{imbalance:.2f}",
    }
