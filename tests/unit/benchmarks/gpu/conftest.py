"""Triton's interpreter, which computes kernels where there is no GPU, on every kind of CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.devices.even_products import even_products


@pytest.fixture(autouse=True)
def rows_have_equal_bits_in_every_batch() -> Iterator[None]:
    with even_products():
        yield
