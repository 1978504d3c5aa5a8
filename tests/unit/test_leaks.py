"""The check for leaks fails the test in which a leak happens."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.cache_server.table import MediaTable
from mmserve.httpserver.limits.reservations import Reservation, Reservations
from tests.fakes.pictures.cache import alloc_item
from tests.fakes.pictures.marks import NoMarks
from tests.fakes.processes.leaks import leaks
from tests.fakes.processes.samples import Samples

FORGETFUL = """
import asyncio

from mmserve.httpserver.limits.reservations import Reservations
from tests.fakes.processes.samples import Samples

def test_forgetful():
    budget = Reservations("body", "--body-budget-mb", 100, Samples(), 1.0)
    asyncio.run(budget.reserve(70))
    assert budget.used_nbytes == 0

def test_careful():
    budget = Reservations("body", "--body-budget-mb", 100, Samples(), 1.0)
    asyncio.run(budget.reserve(70)).release()
"""


def _reserved(nbytes: int) -> Reservation:
    samples: Any = Samples()
    return asyncio.run(Reservations("body", "--body-budget-mb", 100, samples, 1.0).reserve(nbytes))


def _leave_holding(names: list[str]) -> None:
    table = SharedMediaTable(
        MediaTable(1 << 12, first_generation=1, first_item_id=1, first_token=1 << 32, arena=NoMarks())
    )
    table.connect("http")
    table.alloc(Lease("http", "r"), [alloc_item(name) for name in names], 0.0)
    table.unregister("http")
    table.disconnect("http")


def test_bytes_that_are_forgotten() -> None:
    with leaks() as found:
        _reserved(70)
    assert found == ["70 bytes of body were never given back"]


def test_bytes_that_somebody_still_holds() -> None:
    with leaks() as found:
        held = _reserved(70)
    assert found == ["70 bytes are still reserved"]
    held.release()


@pytest.mark.parametrize(("names", "num_leaks"), [([], 0), (["cat", "dog"], 1)])
def test_leases_at_the_end_of_an_owner_that_leaves_in_good_order(names: list[str], num_leaks: int) -> None:
    with leaks() as found:
        _leave_holding(names)
    assert len(found) == num_leaks
    assert all("http forgot 2 leases" in message for message in found)


def test_a_leak_fails_its_own_test(tmp_path: Path) -> None:
    file = tmp_path / "test_forgetful.py"
    file.write_text(FORGETFUL)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", str(file)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "70 bytes of body were never given back" in done.stdout
