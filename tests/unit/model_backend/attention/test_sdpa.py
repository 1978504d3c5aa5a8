"""Torch's attention computes what float64 does, beside chunks, windows and images also with a cap of scores.

The kernels' tests compare with it for everything else.
"""

from __future__ import annotations

import pytest
import torch

from mmserve.model_backend.attention.interface import Mask
from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from tests.fakes.devices.attention import Problem, Step


@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 20])
def test_results_are_those_of_float64(soft_cap: float | None, window: int | None) -> None:
    problem = Problem(
        ((69, 1), (31, 1), (0, 17), (40, 21)), group=3, kv_heads=2, masks=(Mask(window),), soft_cap=soft_cap
    )
    step = Step(problem, stale=0.0)
    assert step.error(step.run(SdpaAttention(problem.spec, torch.float32, torch.device("cpu")))) < 1e-5


def test_a_cache_in_fp8_holds_the_nearest_numbers_and_no_infinity() -> None:
    problem = Problem(((33, 1), (0, 17), (20, 9)), group=2, kv_dtype=torch.float8_e4m3fn)
    step, backend = Step(problem, stale=0.0), SdpaAttention(problem.spec, torch.float32, torch.device("cpu"))
    assert step.error(step.run(backend)) < 1e-5
    q, kv, cache = step.tensors(backend)
    kv.fill_(1.0)
    kv[0, 0, 0, :4] = torch.tensor([1e6, -1e6, 0.3, -500.0])
    backend.forward(q, kv, cache, backend.builder(problem.limits).build(step.input))
    first = cache.flatten(0, 1)[int(step.input.slot_mapping[0])].float()
    assert first[0, 0, :5].tolist() == [448.0, -448.0, 0.3125, -448.0, 1.0]


def test_the_cpu_kernel_leaves_capped_scores_to_torch() -> None:
    spec = Problem(((0, 1),)).spec
    assert PagedCpuAttention.supports(spec, torch.float32)
    assert not PagedCpuAttention.supports(spec._replace(soft_cap=50.0), torch.float32)
