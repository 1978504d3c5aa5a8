"""Chooses the ways of a loaded model's products: kept from an earlier start, or measured now on its own weights."""

from __future__ import annotations

import ctypes
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import torch

from mmserve.config.fields import KernelWays
from mmserve.model_backend.platforms.cpu.linear.packing import PackedLinear
from mmserve.model_backend.platforms.cpu.ways.candidates import MAX_ROWS, Product, Way, candidates, default, install
from mmserve.model_backend.platforms.cpu.ways.measure import fastest
from mmserve.model_backend.platforms.cpu.ways.store import Kept, Measured, Store

_BUDGET_S = 0.4
_LEAST_WEIGHTS = 1 << 18
"""Of a matrix that is measured. Smaller ones are a few tasks, and take less time than what surrounds them."""
_MATRICES = 4
"""Of one shape that a measurement multiplies with, one after the other, so that weights come from memory if the model's
do."""
_MOST_OUTPUTS = 1 << 22
"""Numbers in a result that is measured: for a few rows only, the output head has more."""
Matrices = Mapping[Product, Sequence[PackedLinear]]
logger = logging.getLogger(__name__)


def choose_ways(kernels: ctypes.CDLL, threads: int, linears: Iterable[PackedLinear], ways: KernelWays) -> None:
    """Compute products with ``linears`` in the fastest way. Only the first start of a model on a CPU measures.

    ``threads``: that the kernels use now.
    """
    if ways == "default":
        return
    matrices: dict[Product, list[PackedLinear]] = defaultdict(list)
    for linear in linears:
        if linear.in_size * linear.out_size >= _LEAST_WEIGHTS:
            matrices[Product(linear.format, linear.in_size, linear.out_size)].append(linear)
    if not matrices:
        return
    try:
        kept = _measure_missing(kernels, Store(Path(kernels._name), threads), matrices, measures=ways == "auto")
    except OSError as error:
        logger.debug("the kernels' ways are the default: %s", error)
        return
    chosen = {key: way for key, way in kept.choices().items() if key[0] in matrices and way != _default(*key)}
    install(kernels, chosen)
    for (product, rows), way in chosen.items():
        logger.debug("the kernels compute %s with %d rows or more as %s", product, rows, way)


def _default(product: Product, rows: int) -> Way:
    return default(product.format, rows)


def _measure_missing(kernels: ctypes.CDLL, store: Store, matrices: Matrices, *, measures: bool) -> Kept:
    kept = store.read()
    if not measures or not _missing(kept, matrices):
        return kept
    with store.measuring():
        kept = store.read()  # another process may have measured meanwhile
        if missing := _missing(kept, matrices):
            started_s = time.perf_counter()
            kept.measured.extend(_measure(kernels, {product: matrices[product] for product in missing}))
            store.write(kept)
            logger.debug("measured the kernels' ways within %.2f s, once", time.perf_counter() - started_s)
    return kept


def _missing(kept: Kept, matrices: Matrices) -> set[Product]:
    return matrices.keys() - {measured.product for measured in kept.measured}


@torch.inference_mode()
def _measure(kernels: ctypes.CDLL, matrices: Matrices) -> list[Measured]:
    """All numbers of rows of all products, within the budget. What there is no time for is computed by default."""
    cases = [(product, rows) for rows in MAX_ROWS for product in matrices if rows * product.out_size <= _MOST_OUTPUTS]
    ends_s = time.perf_counter() + _BUDGET_S
    found = []
    for number, (product, rows) in enumerate(cases):
        within_s = (ends_s - time.perf_counter()) / (len(cases) - number)
        way, gain = _measure_one(kernels, product, rows, matrices[product], within_s)
        found.append(Measured(product, rows, way, gain))
    install(kernels, {})
    return found


def _measure_one(
    kernels: ctypes.CDLL, product: Product, rows: int, matrices: Sequence[PackedLinear], within_s: float
) -> tuple[Way, float]:
    x, out = torch.randn(rows, product.in_size), torch.zeros(rows, product.out_size)
    left = cycle(matrices)

    def run(way: Way) -> None:
        install(kernels, {(product, rows): way})
        for _ in range(min(_MATRICES, len(matrices))):
            next(left).apply(x, residual=out)

    return fastest(candidates(product.format, rows), rows, run, within_s)
