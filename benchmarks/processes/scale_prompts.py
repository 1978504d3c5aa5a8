"""Time of a front's decision about a prompt without pictures, by the number of replicas. No server runs.

Replicas hold the beginnings of 20 conversations each; each conversation is held by 10 replicas, to different depths. A
request goes on with one of them.

    python -m benchmarks.processes.scale_prompts
"""

from __future__ import annotations

import argparse
import random
import time

from benchmarks.load import report
from mmserve.cluster.scale.cluster import Cluster
from mmserve.cluster.scale.policy import Want
from mmserve.cluster.scale.reports import Holdings, Load

_BLOCKS, _BLOCK_TOKENS = 64, 128
_HELD, _HOLDERS = 20, 10
_LOAD = Load(slots=8, encode_s=0.3, prefill_s=0.0001)


def decisions_us(count: int, requests: int) -> list[float]:
    """Microseconds of CPU of each decision, in order of size."""
    draw = random.Random(1)
    chains = [tuple(draw.getrandbits(64) for _ in range(_BLOCKS)) for _ in range(count * _HELD // _HOLDERS)]
    front, names = Cluster(), [f"node{number}" for number in range(count)]
    front.set_replicas(names)
    for name in names:
        front.load(name, _LOAD, 0.0)
        held = [each[: draw.randint(8, _BLOCKS)] for each in draw.sample(chains, min(_HELD, len(chains)))]
        front.hold(name, Holdings("blocks", 0, 0, tuple({block for each in held for block in each}), snapshot=True))
    taken_s = []
    for number in range(requests):
        want = Want((), draw.choice(chains), _BLOCKS * _BLOCK_TOKENS, _BLOCK_TOKENS)
        begun_s = time.thread_time()
        front.choose(want, number * 0.001)
        taken_s.append(time.thread_time() - begun_s)
    return [1e6 * each for each in sorted(taken_s)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    arguments = parser.parse_args()
    rows: list[report.Row] = []
    for count in (10, 100, 1000):
        taken_us = decisions_us(count, arguments.requests)
        quantiles = {f"p{share:g} us": report.percentile(taken_us, share / 100) for share in (50, 90, 99, 99.9)}
        rows.append({"replicas": count, **quantiles})
    print(report.table(rows))
    report.write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
