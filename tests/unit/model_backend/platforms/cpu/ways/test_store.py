"""Choices are kept for one CPU, one build of the kernels and one number of threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmserve.model_backend.platforms.cpu.library import levels
from mmserve.model_backend.platforms.cpu.ways.candidates import Product, Way
from mmserve.model_backend.platforms.cpu.ways.store import Kept, Measured, Store, kept

KERNELS = Path("/somewhere/kernels-avx2-0123.so")
MEASURED = Measured(Product(1, 576, 960), 4, Way(4096, 64, 786432), 0.08)


@pytest.fixture(autouse=True)
def directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mmserve"


def store_one(threads: int = 2, kernels: Path = KERNELS) -> None:
    store = Store(kernels, threads)
    found = store.read()
    found.measured.append(MEASURED)
    store.write(found)


def test_what_is_written_is_read_again_with_what_it_is_about() -> None:
    assert Store(KERNELS, 2).read() == Kept(levels.cpu_model(), KERNELS.name, 2, [])
    store_one()
    found = Store(KERNELS, 2).read()
    assert found == Kept(levels.cpu_model(), KERNELS.name, 2, [MEASURED])
    assert found.choices() == {(MEASURED.product, 4): MEASURED.way}
    assert kept() == [found]


def test_another_cpu_build_or_number_of_threads_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    store_one()
    assert not Store(KERNELS, 3).read().measured
    assert not Store(KERNELS.with_name("kernels-avx2-4567.so"), 2).read().measured
    assert Store(Path("/elsewhere") / KERNELS.name, 2).read().measured
    monkeypatch.setattr(levels, "cpu_model", lambda: "another CPU")
    assert not Store(KERNELS, 2).read().measured


@pytest.mark.parametrize(
    "changed",
    [
        {"measured": [[[1, 576, 960], 5, [0, 32, 1], 0.0]]},
        {"measured": [[[1, 576, 960], 4, [0, 0, 1], 0.0]]},
        {"measured": [[[1, 576, 960], 4, [0, 33, 1], 0.0]]},
        {"measured": [[[1, 576, 960], 4, [-1, 32, 1], 0.0]]},
        {"measured": "all"},
    ],
    ids=["rows", "no outputs", "half a panel", "negative", "another type"],
)
def test_a_file_with_ways_that_do_not_exist_counts_as_none(directory: Path, changed: dict[str, Any]) -> None:
    store_one()
    (path,) = directory.glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    assert not Store(KERNELS, 2).read().measured
    assert kept() == []


def test_a_damaged_file_is_replaced(directory: Path) -> None:
    store_one()
    (path,) = directory.glob("*.json")
    path.write_text("")
    store_one()
    assert Store(KERNELS, 2).read().measured == [MEASURED]


def test_cpus_of_one_name_and_another_stepping_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    info = "processor : 0\nmodel\t\t: 17\nmodel name\t: A CPU\nstepping\t: {}\n\nprocessor : 1\nstepping\t: 9\n"
    found = []
    for stepping in (1, 2):
        monkeypatch.setattr(Path, "read_text", lambda path, stepping=stepping: info.format(stepping))
        found.append(levels.cpu_model())
    assert found == ["A CPU, 17, 1", "A CPU, 17, 2"]
