"""The first start of a model measures; later ones, and processes that start meanwhile, use its results."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.platforms.cpu.linear.packing import KernelLinear, PackedLinear
from mmserve.model_backend.platforms.cpu.ways import choose
from mmserve.model_backend.platforms.cpu.ways.candidates import MAX_ROWS, Product, candidates, install
from mmserve.model_backend.platforms.cpu.ways.store import Measured, Store, kept
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler, random

pytestmark = needs_compiler
SIZE = 512  # squared: the fewest weights that are worth it
PRODUCT = Product(0, SIZE, SIZE)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    loaded = kernels()  # before the cache is another
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    yield
    install(loaded, {})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows that were measured; each time the last candidate is found to be the fastest."""
    found: list[int] = []

    def last(ways, rows, run, within_s):  # type: ignore[no-untyped-def]
        found.append(rows)
        for way in ways:
            run(way)
        return ways[-1], 0.2

    monkeypatch.setattr(choose, "fastest", last)
    return found


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[dict]:  # type: ignore[type-arg]
    """What the kernels were told, in order."""
    found = []

    def note(kernels, choices):  # type: ignore[no-untyped-def]
        found.append(dict(choices))
        install(kernels, choices)

    monkeypatch.setattr(choose, "install", note)
    return found


def linear(outputs: int = SIZE) -> KernelLinear:
    found = KernelLinear(kernels(), LinearShape.full(outputs, SIZE))
    found.weight.copy_(random(outputs, SIZE))
    found.finish_loading()
    return found


def start(*linears: PackedLinear, ways: str = "auto", threads: int = 3) -> None:
    choose.choose_ways(kernels(), threads, linears, ways)  # type: ignore[arg-type]


EXPECTED = {(PRODUCT, rows): candidates(0, rows)[-1] for rows in MAX_ROWS}


def test_only_the_first_start_measures(measured: list[int], installed: list[dict]) -> None:  # type: ignore[type-arg]
    start(linear(), linear())
    assert measured == list(MAX_ROWS)
    assert installed[-1] == EXPECTED
    measured.clear()
    installed.clear()
    start(linear())
    assert (measured, installed) == ([], [EXPECTED])
    (found,) = kept()
    assert [result.rows for result in found.measured] == list(MAX_ROWS)


def test_another_model_measures_its_own_products_alone(measured: list[int]) -> None:
    start(linear())
    measured.clear()
    start(linear(), linear(2 * SIZE))
    assert measured == list(MAX_ROWS)
    (found,) = kept()
    assert {result.product.out_size for result in found.measured} == {SIZE, 2 * SIZE}


def test_another_number_of_threads_is_measured_apart(measured: list[int]) -> None:
    start(linear())
    start(linear(), threads=1)
    assert len(measured) == 2 * len(MAX_ROWS)


def test_kept_results_are_used_without_measuring(measured: list[int], installed: list[dict]) -> None:  # type: ignore[type-arg]
    start(linear(), ways="kept")
    assert (measured, installed, kept()) == ([], [{}], [])
    start(linear())
    measured.clear()
    start(linear(), ways="kept")
    assert measured == []
    assert installed[-1] == EXPECTED


def test_by_default_nothing_is_read_or_measured(measured: list[int], installed: list[dict]) -> None:  # type: ignore[type-arg]
    start(linear())
    installed.clear()
    measured.clear()
    start(linear(), ways="default")
    assert (measured, installed) == ([], [])


def test_small_matrices_are_not_measured(measured: list[int]) -> None:
    start(linear(SIZE // 2))
    assert (measured, kept()) == ([], [])


def test_without_a_cache_directory_the_ways_are_the_default(
    measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setenv("TMPDIR", "/dev/null")
    start(linear())
    assert measured == []


def test_a_process_that_starts_meanwhile_waits_and_does_not_measure(measured: list[int]) -> None:
    store = Store(Path(kernels()._name), 3)
    waiting = threading.Thread(target=start, args=(linear(),))
    with store.measuring():
        waiting.start()
        found = store.read()
        found.measured.append(Measured(PRODUCT, 1, candidates(0, 1)[1], 0.2))
        store.write(found)
    waiting.join()
    assert measured == []


def test_a_real_measurement_keeps_the_results_of_products(installed: list[dict]) -> None:  # type: ignore[type-arg]
    """Whatever it chooses: see test_candidates.py. The weights are not changed."""
    method, x = linear(), random(5, SIZE)
    before = method.apply(x)
    start(method)
    assert [result.rows for result in kept()[0].measured] == list(MAX_ROWS)
    assert torch.equal(method.apply(x), before)
