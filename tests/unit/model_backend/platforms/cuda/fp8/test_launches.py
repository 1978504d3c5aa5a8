"""Norms, attention and gates that round their results, in Triton's interpreter against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmserve.model_backend.attention.interface import Mask
from mmserve.model_backend.layers.ops import Addend
from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
from mmserve.model_backend.platforms.cuda.attention.tiling import AttentionTiling, Tiling
from mmserve.model_backend.platforms.cuda.fp8 import launches, rows
from mmserve.model_backend.platforms.cuda.fp8.rows import GROUP, Rows, quantized, widened
from tests.fakes.devices.attention import TOLERANCES, Problem, Step
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
TILING = AttentionTiling(Tiling(16, 16, 4, 1), Tiling(32, 16, 4, 1), short_tokens=5, split_tokens=32, segment_tokens=32)
CHUNKS = {
    "rows of one split and of several": ((69, 1), (31, 1), (0, 1), (-1, 1), (40, 1)),
    "a prompt beside them": ((69, 1), (4, 1), (62, 5), (0, 9)),
    "a prompt": ((0, 9),),
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


@pytest.mark.parametrize(("dim", "group"), [(48, None), (64, GROUP)])
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_attention(chunks: tuple[tuple[int, int], ...], dim: int, group: int | None) -> None:
    """The numbers of two launches, whatever the number of programs; a head, and half of a group, a program."""
    problem = Problem(chunks, group=2, kv_heads=2, dim=dim, masks=(Mask(), Mask(20)))
    step, found = Step(problem), dict[tuple[Mask, int], Rows]()
    for num_programs in (1, 7):
        backend = TritonAttention(problem.spec, torch.device("cpu"), TILING, num_programs)
        metadata = backend.builder(problem.limits).build(step.input)
        for mask in problem.masks:
            rounded = found[mask, num_programs] = attended(step, backend, metadata, mask, group)
            whole = step.run(backend, mask, metadata)
            numbers = widened(rounded, len(whole)).unflatten(1, whole.shape[1:])
            assert step.error(numbers, mask) < TOLERANCES[whole.dtype]
            two_launches = rows.quantized_in_one_launch(whole.flatten(1), group)
            assert all(torch.equal(*pair) for pair in zip(rounded, two_launches, strict=True))
            assert not metadata.partials.heads_done.any(), "the next launch counts from 0"
    for mask in problem.masks:
        assert torch.equal(found[mask, 1].numbers, found[mask, 7].numbers)


def attended(step: Step, backend: TritonAttention, metadata: Any, mask: Mask, group: int | None) -> Rows:
    queries, kv, cache = step.tensors(backend)
    return launches.attended(backend.unmerged(queries, kv, cache, metadata, mask), group)
