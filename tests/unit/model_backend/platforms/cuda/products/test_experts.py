"""Mixtures of experts by Triton's kernels, in its interpreter, against float64; and what they are sorted into."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmserve.checkpoint.spec import MoeSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.moe import MoeMlp, route
from mmserve.model_backend.platforms.cuda.experts import choice
from mmserve.model_backend.platforms.cuda.experts.choice import exact_mixture, problem_with_experts
from mmserve.model_backend.platforms.cuda.experts.grouped import Routing, TritonExperts, max_blocks
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.platforms.torch_ops import TorchOps
from tests.fakes.devices.graph_capture import RecordedGraphs
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

CPU = torch.device("cpu")
LIMITS = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}
"""Relative errors. The interpreter cuts bfloat16 off instead of rounding it."""
SPEC = MoeSpec(num_experts=6, top_k=3, intermediate_size=40, renormalize=True)
HIDDEN = 72


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def kernels(spec: MoeSpec = SPEC) -> TritonExperts:
    return TritonExperts(spec, TorchOps().act_and_mul("silu"))


def mixed(
    rows: int, dtype: torch.dtype, *, residual: bool = True, logits: torch.Tensor | None = None, spec: MoeSpec = SPEC
) -> tuple[torch.Tensor, torch.Tensor]:
    """By the kernels, and in float64."""
    x, base = random(rows, HIDDEN, dtype=dtype), random(rows + 1, HIDDEN, dtype=dtype)[1:]
    gate_up = random(spec.num_experts, 2 * spec.intermediate_size, HIDDEN, dtype=dtype)
    down = random(spec.num_experts, HIDDEN, spec.intermediate_size, dtype=dtype)
    logits = random(rows, spec.num_experts, dtype=dtype) if logits is None else logits.to(dtype)
    exact = exact_mixture(x, logits, gate_up, down, spec) + (base.double() if residual else 0)
    own = base.clone() if residual else None
    found = kernels(spec).mixed(x, logits, gate_up, down, own)
    assert own is None or found is own
    return found, exact


@needs_interpreter
@pytest.mark.parametrize(
    ("rows", "dtype"), [*((rows, dtype) for dtype in LIMITS for rows in (1, 5)), (100, torch.bfloat16)], ids=str
)
def test_results_are_those_of_float64(rows: int, dtype: torch.dtype) -> None:
    found, exact = mixed(rows, dtype, residual=rows != 5)
    assert found.dtype is dtype
    assert (found.double() - exact).norm() <= LIMITS[dtype] * exact.norm()


@needs_interpreter
@pytest.mark.parametrize("favourites", [(4, 2, 0), (5, 4, 3)])
def test_all_tokens_may_choose_the_same_experts(favourites: Sequence[int]) -> None:
    logits = torch.zeros(40, SPEC.num_experts)
    logits[:, favourites] = torch.tensor([3.0, 2.0, 1.0])
    found, exact = mixed(40, torch.float32, logits=logits)
    assert (found.double() - exact).norm() <= 1e-6 * exact.norm()


@needs_interpreter
@pytest.mark.parametrize("renormalize", [True, False])
def test_routing_is_that_of_torch(renormalize: bool) -> None:
    spec = MoeSpec(num_experts=6, top_k=3, intermediate_size=8, renormalize=renormalize)
    logits = random(7, 12)[:, ::2]
    logits = torch.cat((logits, torch.zeros(7, 2)), 1)[:, :6]
    weights, experts = kernels(spec).route(logits)
    expected = route(logits, spec)
    assert torch.allclose(weights, expected[0], rtol=1e-6)
    assert torch.equal(experts.long(), expected[1])


@needs_interpreter
def test_equal_experts_are_taken_in_their_order_and_nan_names_some_that_exist() -> None:
    logits = torch.zeros(2, SPEC.num_experts)
    logits[1] = torch.nan
    _, experts = kernels().route(logits)
    assert experts[0].tolist() == [0, 1, 2]
    assert experts[1].max() < SPEC.num_experts
    assert experts[1].min() >= 0


@needs_interpreter
@pytest.mark.parametrize("chosen", [[0] * 50, [5, 5, 0, 3, 5] * 8, list(range(6)) * 30, [2]])
def test_every_pair_is_in_one_block_of_its_expert(chosen: list[int]) -> None:
    experts = torch.tensor(chosen, dtype=torch.int32)[:, None]
    found: Routing = kernels()._sorted(experts)
    pairs = experts.flatten().long()
    assert found.order.tolist() == pairs.argsort(stable=True).tolist()
    seen = []
    for expert, first, count in found.blocks.tolist():
        if count:
            assert count <= found.rows
            assert (pairs[found.order[first : first + count].long()] == expert).all()
            seen += range(first, first + count)
    assert sorted(seen) == list(range(len(chosen)))


class Unsummed:
    """Collectives that leave a rank its own summand."""

    def all_reduce(self, tensor: torch.Tensor, op: str) -> None:
        pass

    broadcast = gather = all_reduce


def layer(tp: TpGroup, weights: dict[str, torch.Tensor], platform: TorchPlatform) -> MoeMlp:
    """This rank's part of a layer with these weights."""
    spec: Any = SimpleNamespace(hidden_size=HIDDEN, activation="silu")
    made = MoeMlp(spec, SPEC, context=platform.layer_context(tp))
    for name, target in made.targets():
        part = weights[name].narrow(target.dim, target.start, target.into.shape[target.dim])
        target.into.copy_(part)
    return made


def test_ranks_have_a_part_of_every_expert() -> None:
    shapes = {"gate.weight": (SPEC.num_experts, HIDDEN)}
    for expert in range(SPEC.num_experts):
        matrices = {"gate_proj": (SPEC.intermediate_size, HIDDEN), "up_proj": (SPEC.intermediate_size, HIDDEN)}
        matrices["down_proj"] = (HIDDEN, SPEC.intermediate_size)
        shapes |= {f"experts.{expert}.{name}.weight": shape for name, shape in matrices.items()}
    generator = torch.Generator().manual_seed(5)
    weights = {name: torch.randn(shape, generator=generator) / 8 for name, shape in shapes.items()}
    x, residual = random(7, HIDDEN), random(8, HIDDEN)[1:]
    with torch.inference_mode():
        whole = layer(TpGroup(), weights, TorchPlatform(CPU, torch.float32))(x, residual.clone())
        alone = layer(TpGroup(), weights, RecordedGraphs())
        parts = [layer(TpGroup(rank, 2, Unsummed()), weights, RecordedGraphs()) for rank in range(2)]  # type: ignore[arg-type]
        assert alone.is_capturable
        assert torch.allclose(alone(x, residual.clone()), whole, atol=1e-5)
        summands = [part(x, residual.clone()) for part in parts]
    assert torch.allclose(summands[0] + summands[1] - residual, whole, atol=1e-5)


def test_blocks_suffice_however_pairs_are_spread() -> None:
    for rows in (1, 4, 16):
        for counts in ((7, 0, 0), (1, 1, 5), (17, 16, 1), (1, 1, 1)):
            needed = sum(-(-count // rows) for count in counts)
            assert needed <= max_blocks(sum(counts), len(counts), rows)
    assert max_blocks(8, 128, 16) == 8


@needs_interpreter
def test_the_test_at_start_is_passed_and_finds_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problem_with_experts(CPU, torch.float32) == ""
    monkeypatch.setattr(choice, "exact_mixture", lambda *arguments: torch.zeros(1))
    problem_with_experts.cache_clear()
    assert "relative error" in problem_with_experts(CPU, torch.float32)
    problem_with_experts.cache_clear()
