"""Requests to whole servers. Free and constrained requests alternate."""

from __future__ import annotations

import contextlib
import statistics
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import openai
import psutil

from benchmarks.load.report import Row
from benchmarks.load.server import Target
from benchmarks.structured.schemas import of_5_kb, of_long_names, of_texts

Schema = dict[str, Any]

CASES: dict[str, Callable[[int], Schema | None]] = {
    "free": lambda _: None,
    "5 KB, known": lambda _: of_5_kb(0),
    "5 KB, new each time": of_5_kb,
    "long names, known": lambda _: of_long_names(0),
    "texts, known": lambda _: of_texts(0),
}
"""What a request of a round asks for. The first must be the free one. A schema that is known was asked for before."""


class Round(NamedTuple):
    """One request. ``forced``: tokens that a grammar forced."""

    seconds: float
    cpu_s: float
    tokens: int
    forced: float


@dataclass(frozen=True)
class Load:
    """Requests of ``choices`` choices, all of ``tokens`` tokens."""

    model: str
    choices: int
    tokens: int

    def measure(self, target: Target, schema: Schema | None, seed: int) -> Round:
        """One request to an idle server."""
        assert target.pid is not None
        options: dict[str, Any] = {}
        if schema is not None:
            json_schema = {"name": "records", "strict": True, "schema": schema}
            options["response_format"] = {"type": "json_schema", "json_schema": json_schema}
        server = psutil.Process(target.pid)
        with openai.OpenAI(base_url=f"{target.url}/v1", api_key="none", max_retries=0, timeout=600) as client:
            forced, cpu_s, started_s = _num_forced(target.url), _cpu_s(server), time.perf_counter()
            answer = client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": "Hello"}],
                n=self.choices,
                max_tokens=self.tokens,
                temperature=1.0,
                seed=seed,
                extra_body={"ignore_eos": True},
                **options,
            )
            seconds = time.perf_counter() - started_s
        tokens = answer.usage.completion_tokens if answer.usage else 0
        if tokens != self.choices * self.tokens:
            raise RuntimeError(f"the server generated {tokens} tokens")
        return Round(seconds, _cpu_s(server) - cpu_s, tokens, _num_forced(target.url) - forced)

    def rounds(self, targets: dict[str, Target], count: int) -> dict[tuple[str, str], list[Round]]:
        """(name of the target, name of the case) -> its rounds. All of a round come before those of the next."""
        measured: dict[tuple[str, str], list[Round]] = {(name, case): [] for name in targets for case in CASES}
        for number in range(count + 1):
            for name, target in targets.items():
                for case, schema_of in CASES.items():
                    found = self.measure(target, schema_of(number), seed=1 + number * self.choices)
                    if number:  # the first one starts processes and compiles what the others know
                        measured[name, case].append(found)
        return measured


def rows(measured: dict[tuple[str, str], list[Round]]) -> list[Row]:
    """A row for each target and case: medians, and those of the ratios to the free request of the same round."""
    made: list[Row] = []
    for (name, case), rounds in measured.items():
        pairs = list(zip(rounds, measured[name, next(iter(CASES))], strict=True))
        made.append(
            {
                "server": name,
                "schema": case,
                "tokens/s": statistics.median(each.tokens / each.seconds for each in rounds),
                "cost %": 100 * (1 - statistics.median(free.seconds / each.seconds for each, free in pairs)),
                "ms more": 1e3 * statistics.median(each.seconds - free.seconds for each, free in pairs),
                "CPU us/token": 1e6 * statistics.median(each.cpu_s / each.tokens for each in rounds),
                "CPU cost %": 100 * (statistics.median(each.cpu_s / free.cpu_s for each, free in pairs) - 1),
                "forced %": 100 * statistics.median(each.forced / each.tokens for each in rounds),
            }
        )
    return made


def _num_forced(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("mmserve:forced_tokens_total"))


def _cpu_s(server: psutil.Process) -> float:
    """Of all its processes, and of those that have ended."""
    total = 0.0
    for process in (server, *server.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total
