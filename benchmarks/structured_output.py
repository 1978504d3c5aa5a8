"""What a JSON schema costs: tokens/s of 16 choices that must fit one of 5 KB, beside 16 free ones, on one server.

    python -m benchmarks.structured_output [--model DIR] [--choices 16] [--tokens 128] [--rounds 3] [--json FILE]

A request asks for 16 choices of the same length; free and constrained requests alternate. No text that fits the schema
is that short, so no choice ends earlier. Each constrained request has a schema of its own, so its validation and
compilation are in the figure. Medians of the rounds, after one round that is not counted. CPU time is that of all
processes of the server; on a machine that does other work as well it says more than tokens/s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from typing import Any, NamedTuple

import openai
import psutil

from benchmarks.load.report import Row, table, write_json
from benchmarks.load.server import serve

_FIELDS = 48
_KINDS: tuple[dict[str, Any], ...] = (
    {"type": "string", "maxLength": 40},
    {"type": "integer", "minimum": 0, "maximum": 100_000},
    {"enum": ["red", "green", "blue", "yellow"]},
    {"type": "array", "items": {"type": "number"}, "maxItems": 5},
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "ok": {"type": "boolean"}},
        "required": ["name", "ok"],
        "additionalProperties": False,
    },
)


def schema(number: int) -> dict[str, Any]:
    """About 5 KB, and its shortest text has more tokens than a choice. Different for each number."""
    fields = {f"field_{index}_of_schema_{number}": _KINDS[index % len(_KINDS)] for index in range(_FIELDS)}
    item = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": 50}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llava")
    parser.add_argument("--choices", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    free: list[_Round] = []
    constrained: list[_Round] = []
    with serve("--max-num-seqs", str(arguments.choices), model=arguments.model) as target:
        client = openai.OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0, timeout=600)
        server = psutil.Process(target.pid)
        for number in range(arguments.rounds + 1):
            free.append(_measure(client, server, arguments, None))
            constrained.append(_measure(client, server, arguments, schema(number)))
    without, with_schema = _medians(free[1:]), _medians(constrained[1:])
    rows: list[Row] = [
        {
            "choices": arguments.choices,
            "schema bytes": len(json.dumps(schema(0), separators=(",", ":"))),
            "free tokens/s": without.tokens_per_s,
            "constrained tokens/s": with_schema.tokens_per_s,
            "cost %": 100 * (1 - with_schema.tokens_per_s / without.tokens_per_s),
            "free CPU us/token": without.cpu_us,
            "constrained CPU us/token": with_schema.cpu_us,
            "CPU cost %": 100 * (with_schema.cpu_us / without.cpu_us - 1),
        }
    ]
    print(table(rows))
    write_json(arguments.json, rows)


class _Round(NamedTuple):
    tokens_per_s: float
    cpu_us: float
    """For each token."""


def _medians(rounds: list[_Round]) -> _Round:
    return _Round(*map(statistics.median, zip(*rounds, strict=True)))


def _measure(
    client: openai.OpenAI, server: psutil.Process, arguments: argparse.Namespace, wanted: dict[str, Any] | None
) -> _Round:
    started_s, cpu_s = time.perf_counter(), _cpu_s(server)
    options: dict[str, Any] = {}
    if wanted is not None:
        json_schema = {"name": "records", "strict": True, "schema": wanted}
        options["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    answer = client.chat.completions.create(
        model="",
        messages=[{"role": "user", "content": "Hello"}],
        n=arguments.choices,
        max_tokens=arguments.tokens,
        temperature=1.0,
        seed=1,
        extra_body={"ignore_eos": True},
        **options,
    )
    tokens = answer.usage.completion_tokens if answer.usage else 0
    if tokens != arguments.choices * arguments.tokens:
        raise RuntimeError(f"the server generated {tokens} tokens")
    return _Round(tokens / (time.perf_counter() - started_s), (_cpu_s(server) - cpu_s) / tokens * 1e6)


def _cpu_s(server: psutil.Process) -> float:
    """Of all its processes, and of those that have ended."""
    total = 0.0
    for process in (server, *server.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


if __name__ == "__main__":
    main()
