"""The ways in which the kernels can compute a product, all with the same bits (``csrc/linear/ways.h``)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

_TAKE_LONGER = (0, 1, 10)
"""Numbers of the layouts float32, bfloat16, and bfloat16 with tiles."""
_ARE_FAST = (4, 11)
"""Bfloat16 with rounded inputs, without tiles."""
_BFLOAT16 = 1
_FLOAT8 = 8
"""All others are whole numbers."""
_UNQUANTIZED = (*_TAKE_LONGER, 4)
_KIB = 1 << 10
_NEAR, _FAR = _KIB, 16 * _KIB
MAX_ROWS = {1: 1, 4: 4, 8: 12, 16: 48, 128: 1 << 40}
"""Rows that are measured, and up to how many rows the choice is used."""


class Way(NamedTuple):
    """See ``csrc/linear/ways.h``."""

    ahead_nbytes: int
    task_outputs: int
    task_rows_nbytes: int


class Product(NamedTuple):
    """Products with matrices of one shape and layout."""

    format: int
    """The kernels' number for the layout of the weights."""
    in_size: int
    out_size: int


Choices = Mapping[tuple[Product, int], Way]
"""By product and rows, a key of ``MAX_ROWS``."""


def default(format: int, rows: int) -> Way:
    """What the kernels do without a choice."""
    kept_up_with = 0 if format == _FLOAT8 else 1 if format in _TAKE_LONGER else 4 if format in _ARE_FAST else 2
    of_few_rows = _NEAR if format == _BFLOAT16 else 0
    return Way(of_few_rows if rows <= kept_up_with else _FAR, 32, 768 * _KIB)


def candidates(format: int, rows: int) -> list[Way]:
    """All ways worth a measurement; the default is the first."""
    if rows >= 128:
        found = [Way(_FAR, 32, nbytes * _KIB) for nbytes in (256, 768, 1536)]
    else:
        near = (4 * _KIB,) if format in _UNQUANTIZED and rows < 16 else ()
        found = [Way(ahead, outputs, 768 * _KIB) for ahead, outputs in product((0, *near, _FAR), (32, 64))]
    first = default(format, rows)
    return [first, *(way for way in found if way != first)]


def install(kernels: ctypes.CDLL, choices: Choices) -> None:
    """Compute so from now on; all other products, and other numbers of rows, by default. Not while another thread
    computes."""
    numbers = [n for (of, rows), way in choices.items() for n in (*of, _min_rows(rows), MAX_ROWS[rows], *way)]
    table = (ctypes.c_int64 * len(numbers))(*numbers)
    kernels.mm_choose_ways(ctypes.addressof(table), len(choices))


def _min_rows(rows: int) -> int:
    """From how many rows on the choice for ``rows``, a key of ``MAX_ROWS``, is used."""
    return 1 + max((most for fewer, most in MAX_ROWS.items() if fewer < rows), default=0)
