"""The cases that are compared: mmserve with each gate, and the pickling baseline. Starts each of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.load.memory import available_nbytes
from benchmarks.load.server import Target, serve
from benchmarks.memory.memory_guard import MIN_AVAILABLE_NBYTES
from benchmarks.memory.pictures import Pictures
from mmserve.cli.bench.client import run

OFF = "gate off"
_FRONT = ("benchmarks.memory.pickled.front",)
_CALIBRATING = 6
_COPIES_NBYTES = 110 << 20
"""Memory that the baseline needs for one picture's pixels, front and engine together."""
_SPARE_NBYTES = 1 << 30


@dataclass(frozen=True)
class Case:
    """One server, started anew for each run."""

    server: str
    setting: str
    tokens: int
    arguments: tuple[str, ...]
    baseline: bool = False

    @property
    def name(self) -> str:
        return f"{self.server}, {self.setting}, {self.tokens} tokens"


@contextlib.contextmanager
def started(case: Case, model: str) -> Iterator[Target]:
    """The case's server, ready."""
    program = {"program": _FRONT} if case.baseline else {}
    with serve(*case.arguments, model=model, **program) as target:
        yield target


def of_mmserve(gates: Sequence[int], tokens: Sequence[int], arguments: Sequence[str]) -> list[Case]:
    """``gates``: --max-mm-preprocess-concurrency, 0 for off; ``arguments``: further flags."""
    return [
        Case(
            "mmserve",
            f"gate {gate}" if gate else OFF,
            count,
            (*arguments, "--max-mm-preprocess-concurrency", str(gate)),
        )
        for count in tokens
        for gate in gates
    ]


def of_baseline(tokens: Sequence[int], serial_ms: float) -> list[Case]:
    """Encoding takes twice or half the time of everything before it; references are kept to the end, or dropped."""
    slow = ("--service-ms", f"{2 * serial_ms:.0f}")
    fast = ("--service-ms", f"{serial_ms / 2:.0f}")
    first = tokens[0]
    return [
        *(Case("baseline", "kept", count, slow, baseline=True) for count in tokens),
        Case("baseline", "kept, fast encoder", first, fast, baseline=True),
        Case("baseline", "kept, gate 1", first, (*slow, "--gate", "1"), baseline=True),
        Case("baseline", "dropped", first, (*slow, "--drop"), baseline=True),
        Case("baseline", "kept, 336 x 336 pixels", first, (*fast, "--pixels", "clip"), baseline=True),
    ]


def serial_ms(pictures: Pictures) -> float:
    """Milliseconds that the baseline needs from socket to engine for one picture, without load and encoding time."""
    with serve(program=_FRONT) as target:
        bodies = pictures.bodies(target.model, 1, _CALIBRATING + 1)
        asyncio.run(run(target.url, bodies[:1], 1, 60.0))
        records, wall_s = asyncio.run(run(target.url, bodies[1:], 1, 60.0))
    return wall_s / len(records) * 1e3


def clients_that_fit(clients: int) -> int:
    """How many of the clients the baseline can serve at once in this machine's memory."""
    free_nbytes = available_nbytes() - MIN_AVAILABLE_NBYTES - _SPARE_NBYTES
    return max(1, min(clients, free_nbytes // _COPIES_NBYTES))
