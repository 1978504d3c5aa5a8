"""Triton's interpreter, which computes kernels where there is no GPU, on every kind of CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.devices.even_products import even_products
from tests.fakes.devices.nested_calls import quick_nested_calls


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    with even_products(), quick_nested_calls():
        yield
