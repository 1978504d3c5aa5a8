"""What a JSON schema costs: tokens/s of 16 choices that must fit one of 5 KB, beside 16 free ones, on one server; and
what it saves to compute the text that a schema forces in one step (``--jump-forward``).

    python -m benchmarks.structured_output [--model DIR] [--choices 16] [--tokens 128] [--rounds 3] [--json FILE]

First a rank alone, in this process: steps of free and of constrained sequences alternate, so other work on the machine
slows both alike. "prepare" is the time in which the next masks are made; a rank does this while the router makes the
next plan. Then a whole server: a request asks for 16 choices of the same length; free and constrained requests
alternate. No text that fits the schema is that short, so no choice ends earlier. Each constrained request has a schema
of its own, so its validation and compilation are in the figure. The cost is the median of the pairs' ratios; the first
pair is not counted. CPU time is that of all processes of the server. All of this is without ``--jump-forward``.

Last, the same request with a schema of long names and short values, as in extraction, alternately to two servers: one
with and one without ``--jump-forward``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import time
import urllib.request
from typing import Any, NamedTuple

import openai
import psutil
import torch

from benchmarks.load.report import Row, table, write_json
from benchmarks.load.server import serve
from mmserve.checkpoint.locate import locate
from mmserve.config.config import Config
from mmserve.grammar.sources import json_schema_grammar
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.engine import Driver, make_runner

_FIELDS = 48
_STEPS = 300
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


def records(number: int) -> dict[str, Any]:
    """Long names, short values. Different for each number."""
    fields = {f"attribute_{index}_of_record_{number}": _KINDS[index % 2 + 1] for index in range(8)}
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
    of_a_rank = _steps(arguments)
    print(table([of_a_rank]))
    free: list[_Round] = []
    constrained: list[_Round] = []
    with serve("--max-num-seqs", str(arguments.choices), "--no-jump-forward", model=arguments.model) as target:
        client = openai.OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0, timeout=600)
        server = psutil.Process(target.pid)
        for number in range(arguments.rounds + 1):
            free.append(_measure(client, server, arguments, None))
            constrained.append(_measure(client, server, arguments, schema(number)))
    pairs = list(zip(free[1:], constrained[1:], strict=True))
    without, with_schema = _medians(free[1:]), _medians(constrained[1:])
    rows: list[Row] = [
        {
            "choices": arguments.choices,
            "schema bytes": len(json.dumps(schema(0), separators=(",", ":"))),
            "free tokens/s": without.tokens_per_s,
            "constrained tokens/s": with_schema.tokens_per_s,
            "cost %": 100 * (1 - statistics.median(fits.tokens_per_s / any_.tokens_per_s for any_, fits in pairs)),
            "free CPU us/token": without.cpu_us,
            "constrained CPU us/token": with_schema.cpu_us,
            "CPU cost %": 100 * (statistics.median(fits.cpu_us / any_.cpu_us for any_, fits in pairs) - 1),
        }
    ]
    print(table(rows))
    jumps = _jumps(arguments)
    print(table([jumps]))
    write_json(arguments.json, [of_a_rank, *rows, jumps])


def _jumps(arguments: argparse.Namespace) -> Row:
    """Medians of two servers, with and without ``--jump-forward``, and the share of tokens that are forced."""
    rounds: dict[str, list[_Round]] = {"--jump-forward": [], "--no-jump-forward": []}
    with contextlib.ExitStack() as stack:
        targets = {
            option: stack.enter_context(serve("--max-num-seqs", str(arguments.choices), option, model=arguments.model))
            for option in rounds
        }
        for number in range(arguments.rounds + 1):
            for option, target in targets.items():
                client = openai.OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0, timeout=600)
                rounds[option].append(_measure(client, psutil.Process(target.pid), arguments, records(number)))
        num_forced = _counter(targets["--jump-forward"].url, "forced_tokens_total")
    jumping, stepwise = (measured[1:] for measured in rounds.values())
    return {
        "choices": arguments.choices,
        "forced %": 100 * num_forced / (arguments.choices * arguments.tokens * (arguments.rounds + 1)),
        "jump tokens/s": _medians(jumping).tokens_per_s,
        "no jump tokens/s": _medians(stepwise).tokens_per_s,
        "factor": statistics.median(
            jump.tokens_per_s / step.tokens_per_s for jump, step in zip(jumping, stepwise, strict=True)
        ),
    }


def _counter(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"mmserve:{name}"))


def _steps(arguments: argparse.Namespace) -> Row:
    """Medians of a rank's steps with all sequences free, and with all of them constrained."""
    count, model = arguments.choices, locate(arguments.model)
    config = Config(model=str(model), max_num_seqs=2 * count, jump_forward=False)
    cores = len(os.sched_getaffinity(0))
    runner = make_runner(model, config=config, cpu_threads=cores, max_model_len=512, kv_tokens=2 * count * 512)
    platform_for("cpu", "float32").set_threads(cores)
    torch.set_num_threads(1)  # as in a rank
    grammar = json_schema_grammar(schema(0), "schema")
    drivers = (Driver(runner), Driver(runner))
    drivers[1]._new_blocks = itertools.count(count * 512 // runner.block_tokens)
    for number, (driver, text) in enumerate(zip(drivers, ("", grammar), strict=True)):
        for slot in range(count):
            sampling = SamplingParams(max_tokens=1000, seed=slot, grammar=text)
            driver.add(number * count + slot, list(range(100, 130)), sampling=sampling)
    _compile(runner, grammar)
    times: dict[str, list[float]] = {"free": [], "constrained": [], "prepare": []}
    for _ in range(_STEPS):
        for driver, name in zip(drivers, ("free", "constrained"), strict=True):
            started_s = time.perf_counter()
            result = driver.step()
            ended_s = time.perf_counter()
            if result.failures or result.deferred:
                raise RuntimeError("a sequence got no token")
            runner.prepare()
            times[name].append(ended_s - started_s)
            if driver is drivers[1]:
                times["prepare"].append(time.perf_counter() - ended_s)
    free, constrained, prepare = (statistics.median(values) * 1e3 for values in times.values())
    return {
        "choices": count,
        "free step ms": free,
        "constrained step ms": constrained,
        "cost %": 100 * (constrained / free - 1),
        "prepare ms": prepare,
    }


def _compile(runner: ModelRunner, grammar: str) -> None:
    """So that no sequence is deferred."""
    sampler = runner._sampling._sampler
    assert sampler is not None
    assert sampler._grammars is not None
    sampler._grammars._compiler.start(grammar, ()).future.result()


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
        model=arguments.model,
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
