"""Products of numpy, in which Triton's interpreter multiplies, whose numbers do not depend on a row's place.

On CPUs without AVX-512 numpy adds the products of a row in an order that depends on where the row stands among the
others. So a row's bits changed with its batch, which they do not on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

_SINGLE = np.dtype(np.float32)
_matmul = np.matmul


def _even(a: Any, b: Any, dtype: Any = None) -> Any:
    """The product in double precision, rounded once. Other results than float32 are numpy's."""
    if (np.result_type(a, b) if dtype is None else np.dtype(dtype)) != _SINGLE:
        return _matmul(a, b, dtype=dtype)
    return _matmul(a, b, dtype=np.float64).astype(_SINGLE)


@contextmanager
def even_products() -> Iterator[None]:
    """``numpy.matmul`` gives such products within it."""
    with patch.object(np, "matmul", _even):
        yield
