"""Throughput of ``mmserve batch`` beside that of the server itself, with the same requests on the same server.

The server's own: closed-loop clients, as many as the batch has lines in flight, each streaming its answers. The two
alternate; each run has new prompts. The aim is 95 %.

    python -m benchmarks.batch
    python -m benchmarks.batch --requests 400 --images 1 --repeats 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.load import report
from benchmarks.load.server import Target, serve
from mmserve.batch.resume import opened
from mmserve.batch.source import check
from mmserve.cli.bench import plan
from mmserve.cli.bench.client import Body, run
from mmserve.client.offline.batch_file import answer_file

_IN_FLIGHT = 136
_TARGET = 0.95


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300, help="of each run [%(default)s]")
    parser.add_argument("--input-words", type=int, default=128, help="of each prompt [%(default)s]")
    parser.add_argument("--output-tokens", type=int, default=64, help="of each answer [%(default)s]")
    parser.add_argument("--images", type=int, default=0, help="new pictures in each request [%(default)s]")
    parser.add_argument("--repeats", type=int, default=3, help="medians are printed [%(default)s]")
    parser.add_argument("--serve-args", default="", help="further flags of the server")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    options = parser.parse_args()
    load = plan.Load(
        requests=options.requests,
        words=options.input_words,
        output_tokens=options.output_tokens,
        images=options.images,
        extra={"ignore_eos": True},
    )
    rates: dict[str, list[float]] = {"server": [], "batch": []}
    with serve(*options.serve_args.split()) as target:
        for repeat in range(options.repeats + 1):
            for place, (name, measure) in enumerate((("server", _server), ("batch", _batch))):
                rate = measure(target, plan.bodies(load, target.model, 2 * repeat + place))
                print(f"{name}: {rate:.2f} requests/s{'' if repeat else ' (warm-up)'}", flush=True)
                if repeat:
                    rates[name].append(rate)
    found = {name: statistics.median(values) for name, values in rates.items()}
    share = found["batch"] / found["server"]
    setting = f"{options.requests} requests, {options.images} pictures each"
    rows = [report.at_least("batch / server, requests/s", setting, round(share, 3), _TARGET)]
    rows += [{"figure": f"{name}, requests/s", "setting": setting, "got": round(found[name], 2)} for name in found]
    print(f"\n{report.machine()}\n\n{report.table(rows)}")
    report.write_json(options.json, rows)


def _server(target: Target, bodies: list[Body]) -> float:
    records, wall_s = asyncio.run(run(target.url, bodies, _IN_FLIGHT, 600))
    assert not any(record.error for record in records), records[0].error
    return len(records) / wall_s


def _batch(target: Target, bodies: list[Body]) -> float:
    with tempfile.TemporaryDirectory() as directory:
        source, answers, errors = (Path(directory) / name for name in ("in.jsonl", "out.jsonl", "errors.jsonl"))
        with open(source, "w") as file:
            for number, body in enumerate(bodies):
                whole = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
                line = {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": whole}
                file.write(json.dumps(line) + "\n")
        started_s = time.perf_counter()
        checked = check(source)
        with opened(source, checked, answers, errors, retry_errors=False) as files:
            work = answer_file(source, checked, files, target.url, None, _IN_FLIGHT, show_progress=False)
            progress = asyncio.run(work)
        assert progress.answered == len(bodies)
        return len(bodies) / (time.perf_counter() - started_s)


if __name__ == "__main__":
    main()
