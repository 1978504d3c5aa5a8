"""Norms and gates that round their results, in Triton's interpreter against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mmserve.model_backend.layers.ops import Addend
from mmserve.model_backend.platforms.cuda.fp8 import launches, rows
from mmserve.model_backend.platforms.cuda.fp8.rows import GROUP, Rows, quantized, widened
from tests.unit.model_backend.platforms.cuda.fp8 import rounding
from tests.unit.model_backend.platforms.cuda.fp8.loading import random
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

pytestmark = needs_interpreter
SIZE, COUNT, EPS = 3 * GROUP, 5, 1e-5
Launch = Callable[[torch.Tensor, int | None], Rows]
GATES: dict[str, tuple[Launch, Launch]] = {
    "SiLU": (lambda x, group: launches.gated(x, False, group), lambda x, group: rounding.gated(x, False, group)),
    "GELU": (lambda x, group: launches.gated(x, True, group), lambda x, group: rounding.gated(x, True, group)),
}
ADDENDS = {
    "alone": None,
    "a sum": Addend(random(COUNT, SIZE + 1)[:, :SIZE], None),
    "a normed sum": Addend(random(COUNT, SIZE + 1)[:, :SIZE], random(SIZE)),
}


@pytest.fixture(autouse=True)
def not_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels' results are float32 with the scales of FP8: the interpreter rounds to FP8 wrongly."""
    monkeypatch.setattr(rows, "FP8", torch.float32)


def check(found: Rows, exact: torch.Tensor, group: int | None) -> None:
    expected = quantized(exact, group)
    torch.testing.assert_close(found.scales, expected.scales)
    assert found.scales.stride() == expected.scales.stride()
    torch.testing.assert_close(widened(found, COUNT), exact, rtol=1e-5, atol=1e-5)
    assert not found.numbers[COUNT:].any()
    assert found.numbers.abs().amax() <= 448


@pytest.mark.parametrize("group", [None, GROUP])
@pytest.mark.parametrize("addend", ADDENDS.values(), ids=ADDENDS)
def test_norms_and_what_is_added_before_them(addend: Addend | None, group: int | None) -> None:
    hidden, weight = random(COUNT, SIZE + 2)[:, :SIZE], random(SIZE)
    exact = hidden.double()
    own = None if addend is None else Addend(*(None if each is None else each.double() for each in addend))
    normed = widened(rounding.normed(exact, weight.double(), EPS, own, group), COUNT)
    check(launches.normed(hidden, weight, EPS, addend, group), normed, group)
    torch.testing.assert_close(hidden.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("group", [None, GROUP])
@pytest.mark.parametrize("size", [SIZE, 10 * GROUP])
@pytest.mark.parametrize("gate", GATES)
def test_gates(gate: str, size: int, group: int | None) -> None:
    """Rows of more groups than one program rounds, too."""
    found, reference = GATES[gate]
    x = random(COUNT, 2 * size)
    check(found(x, group), widened(reference(x.double(), group), COUNT), group)
