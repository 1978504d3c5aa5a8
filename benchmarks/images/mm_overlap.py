"""TTFT of one client whose pictures follow text: how much of encoding and prefill happens at the same time.

A long text and then one picture; several pictures; and repeated pictures that the arena has evicted, while the KV cache
still holds them. Every answer is a few tokens. Starts ``mmserve serve`` with a small arena unless targets are given;
their requests alternate, so that a busy machine disturbs all alike.

    python -m benchmarks.images.mm_overlap
    python -m benchmarks.images.mm_overlap --target before=http://127.0.0.1:9000 --target after=http://127.0.0.1:9001
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import random

from benchmarks.load import report
from benchmarks.load.server import Target, parse_target, targets_or_started
from mmserve.cli.bench.client import run
from mmserve.cli.bench.plan import jpeg, words

TIMEOUT_S = 300.0
POOL_SEED = 99
SMALL_ARENA = "--mm-cache-gb 0.002 --kv-cache-gb 0.5"
"""For about 14 pictures of the packaged model, in the KV cache all of them."""

_KNOWN = "known picture"

Body = dict[str, object]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", type=parse_target, help="name=URL[,model=M]; repeatable")
    parser.add_argument("--model", default="llava", help="for the server that is started without --target")
    parser.add_argument("--serve-args", default=SMALL_ARENA, help="flags for it [%(default)s]")
    parser.add_argument("--requests", type=int, default=40, help="of each load")
    parser.add_argument("--words", type=int, default=300, help="of the long text")
    parser.add_argument("--size", type=int, default=1024, help="pixels of a picture's side")
    parser.add_argument("--pictures", type=int, default=8, help="of the request with several")
    parser.add_argument("--pool", type=int, default=32, help="number of repeated pictures; more than the arena holds")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def _picture(rng: random.Random, size: int) -> Body:
    data = base64.b64encode(jpeg(rng, (size, size))).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}


def _body(target: Target, content: list[Body], system: str = "") -> Body:
    return {
        "model": target.model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": content}],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def loads(target: Target, seed: int, options: argparse.Namespace) -> dict[str, list[Body]]:
    """Load -> its requests. The long text is a system message: some chat templates put pictures before text."""
    rng, known = random.Random(seed), random.Random(POOL_SEED)
    each, several = range(options.requests), range(options.pictures)

    def question(source: random.Random, pictures: range) -> list[Body]:
        return [*(_picture(source, options.size) for _ in pictures), {"type": "text", "text": words(rng, 4)}]

    return {
        "text": [_body(target, question(rng, range(0)), words(rng, options.words)) for _ in each],
        "text, picture": [_body(target, question(rng, range(1)), words(rng, options.words)) for _ in each],
        "picture": [_body(target, question(rng, range(1)), words(rng, 1)) for _ in each],
        f"{options.pictures} pictures": [_body(target, question(rng, several), words(rng, 1)) for _ in each],
        _KNOWN: 2 * [_body(target, question(known, range(1))) for _ in range(options.pool)],
    }


def compare(targets: list[Target], options: argparse.Namespace) -> list[report.Row]:
    """All loads against all targets. The first request of each load warms up; of known pictures the second round
    counts."""
    rows: list[report.Row] = []
    bodies = {target: loads(target, seed, options) for seed in [random.randrange(1 << 31)] for target in targets}
    for name in bodies[targets[0]]:
        ttft_ms: dict[str, list[float]] = {target.name: [] for target in targets}
        num_before = options.pool if name == _KNOWN else 1
        for number in range(len(bodies[targets[0]][name])):
            for target in targets if number % 2 else reversed(targets):
                (record,), _ = asyncio.run(run(target.url, [bodies[target][name][number]], 1, TIMEOUT_S))
                if record.error:
                    print(f"  {target.name}: {name}: {record.error}")
                elif number >= num_before:
                    ttft_ms[target.name].append(record.ttft_s * 1e3)
        rows += [{"load": name, "server": server, **_figures(times)} for server, times in ttft_ms.items()]
    return rows


def _figures(ttft_ms: list[float]) -> dict[str, float]:
    quarter, half, three_quarters = (report.percentile(ttft_ms, share) for share in (0.25, 0.5, 0.75))
    return {"ok": len(ttft_ms), "ttft_p25_ms": quarter, "ttft_p50_ms": half, "ttft_p75_ms": three_quarters}


def main() -> None:
    options = arguments()
    with targets_or_started(options.target, options.serve_args, options.model) as targets:
        rows = compare(targets, options)
    what = f"one client, JPEGs of {options.size} x {options.size}, text of {options.words} words"
    print(f"\n{report.machine()}; {what}\n\n{report.table(rows)}")
    report.write_json(options.json, rows)


if __name__ == "__main__":
    main()
