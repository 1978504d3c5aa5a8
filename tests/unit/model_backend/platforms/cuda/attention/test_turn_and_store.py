"""Norms, rotation and the store of K and V in one launch, in Triton's interpreter, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmserve.model_backend.attention.interface import UNTURNED, HeadTurn, RopeRows
from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.layers.head_turn import turn_heads_
from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
from mmserve.model_backend.platforms.torch_ops import TorchOps
from tests.fakes.devices.attention import Problem, Step
from tests.unit.model_backend.platforms.cuda.attention.test_attention import TILING
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

pytestmark = needs_interpreter
CPU = torch.device("cpu")
LIMITS = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""Relative errors. The interpreter cuts bfloat16 off instead of rounding it."""
PROBLEM = Problem(((40, 1), (3, 1), (0, 6)), group=3, kv_heads=3, dim=32)


def turn(rows: int, dim: int, pairs: int, *, norms: bool, ropes: RopeRows | None, adjacent: bool = False) -> HeadTurn:
    """In float32, with weights of norms and angles that are not alike."""
    generator = torch.Generator().manual_seed(pairs)
    weights = list(torch.rand(2, dim, generator=generator)) if norms else [None, None]
    angles = torch.rand(2, rows, pairs, generator=generator) * 100
    return HeadTurn(*weights, 1e-5, angles.cos(), angles.sin(), ropes, adjacent)


def rounded(whole: HeadTurn, dtype: torch.dtype) -> HeadTurn:
    """Its tensors in ``dtype``."""
    return whole._replace(
        **{
            name: value.to(dtype)
            for name, value in zip(HeadTurn._fields, whole, strict=True)
            if isinstance(value, torch.Tensor)
        }
    )


def turned_and_stored(problem: Problem, how: HeadTurn) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values in float64: by the kernel, and exactly."""
    step, backend = Step(problem), TritonAttention(problem.spec, CPU, TILING, 3)
    q, kv, cache = step.tensors(backend)
    heads = torch.cat((q, kv.flatten(1, 2)), 1)
    exact = heads.double()
    turn_heads_(TorchOps(), exact, problem.spec.num_heads, problem.spec.num_kv_heads, rounded(how, torch.float64))
    backend.forward(q, kv, cache, backend.builder(problem.limits).build(step.input), turn=how)
    stored = cache.flatten(0, 1)[torch.from_numpy(step.input.slot_mapping)]
    return torch.cat((q.double(), stored.double().flatten(1, 2)), 1), exact


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize(
    "how",
    [
        turn(8, 32, 16, norms=False, ropes=RopeRows(0, 0)),
        turn(8, 32, 16, norms=True, ropes=RopeRows(1, 0), adjacent=True),
        turn(8, 32, 6, norms=True, ropes=RopeRows(0, 1)),
        turn(8, 32, 16, norms=True, ropes=None),
    ],
    ids=["halves", "norms, adjacent, ropes of their own", "norms, a part", "norms alone"],
)
def test_what_the_attention_kernels_read_is_what_float64_gives(dtype: torch.dtype, how: HeadTurn) -> None:
    found, exact = turned_and_stored(replace(PROBLEM, dtype=dtype), rounded(how, dtype))
    assert (found - exact).norm() <= LIMITS[dtype] * exact.norm()


def test_weights_of_norms_may_be_float32_beside_bfloat16() -> None:
    how = turn(8, 32, 16, norms=True, ropes=RopeRows(0, 0))
    mixed = rounded(how, torch.bfloat16)._replace(q_norm=how.q_norm, k_norm=how.k_norm)
    found, exact = turned_and_stored(replace(PROBLEM, dtype=torch.bfloat16), mixed)
    assert (found - exact).norm() <= LIMITS[torch.bfloat16] * exact.norm()


def test_a_cache_in_fp8_gets_the_turned_keys() -> None:
    """Quarter turns, so that they are numbers which fp8 holds: the interpreter rounds others wrongly."""
    problem = replace(PROBLEM, dtype=torch.bfloat16, kv_dtype=torch.float8_e4m3fn)
    turns = HeadTurn(cos=torch.zeros(1, 8, 16).bfloat16(), sin=torch.ones(1, 8, 16).bfloat16(), ropes=RopeRows(0, 0))
    found, exact = turned_and_stored(problem, turns)
    assert torch.equal(found, exact)
    unturned, _ = turned_and_stored(problem, UNTURNED)
    assert not torch.equal(found, unturned)


def test_attention_after_a_turn_is_torch_s() -> None:
    step, backend = Step(PROBLEM, stale=0.0), TritonAttention(PROBLEM.spec, CPU, TILING, 3)
    how = turn(8, 32, 16, norms=True, ropes=RopeRows(0, 0))
    q, kv, cache = step.tensors(backend)
    heads, copied = torch.cat((q, kv.flatten(1, 2)), 1), cache.clone()
    out = backend.forward(q, kv, cache, backend.builder(PROBLEM.limits).build(step.input), turn=how)
    turn_heads_(TorchOps(), heads, 9, 3, how)
    torch_attention = SdpaAttention(PROBLEM.spec, torch.float32, CPU)
    metadata = torch_attention.builder(PROBLEM.limits).build(step.input)
    expected = torch_attention.forward(heads[:, :9], heads[:, 9:].unflatten(1, (2, 3)), copied, metadata)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_rows_behind_those_of_the_step_are_left_alone() -> None:
    """They fill up a captured graph: the cache stays as it is, and so do the rows."""
    step, backend = Step(PROBLEM), TritonAttention(PROBLEM.spec, CPU, TILING, 3)
    how = turn(10, 32, 16, norms=True, ropes=RopeRows(0, 1))
    q, kv, cache = step.tensors(backend)
    expected = cache.clone()
    metadata = backend.builder(PROBLEM.limits).build(step.input)
    longer = torch.cat((torch.cat((q, kv.flatten(1, 2)), 1), torch.full((2, 15, 32), torch.nan)))
    rows = [longer.clone()[:8], longer.clone()]
    backend.forward(q, kv, expected, metadata, turn=how._replace(cos=how.cos[:, :8], sin=how.sin[:, :8]))  # type: ignore[index]
    out = backend.forward(rows[1][:, :9], rows[1][:, 9:].unflatten(1, (2, 3)), cache, metadata, turn=how)
    assert torch.equal(cache.nan_to_num(-1.0), expected.nan_to_num(-1.0))
    assert torch.equal(rows[1][:8, :9], q)
    assert torch.isnan(rows[1][8:]).all()
    assert torch.isfinite(out[:8]).all()
