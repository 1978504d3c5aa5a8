"""Norms, rotation and gates by Triton's kernels, in its interpreter, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mmserve.model_backend.platforms.cuda import row_ops
from mmserve.model_backend.platforms.cuda.row_ops import RowOps, working_kernels
from mmserve.model_backend.platforms.torch_ops import TorchOps
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

pytestmark = needs_interpreter
CPU = torch.device("cpu")
LIMITS = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
"""Relative errors. The interpreter cuts bfloat16 off instead of rounding it."""
Operation = Callable[[TorchOps, list[torch.Tensor]], torch.Tensor]


@pytest.fixture(scope="module")
def ops() -> RowOps:
    made = RowOps()
    made.tested = working_kernels(CPU)
    return made


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def rms_norm(ops: TorchOps, t: list[torch.Tensor]) -> torch.Tensor:
    return ops.rms_norm(t[0], t[1], 1e-5)


def head_norm(ops: TorchOps, t: list[torch.Tensor]) -> torch.Tensor:
    ops.head_norm_(t[0][:, 1:3], t[1], 1e-5)
    return t[0]


def add_normed(ops: TorchOps, t: list[torch.Tensor], with_then: bool = True) -> torch.Tensor:
    normed = ops.add_normed_(t[0][1:], t[1], t[2], t[3] if with_then else None, 1e-5)
    return torch.cat((t[0], normed))


def added(ops: TorchOps, t: list[torch.Tensor]) -> torch.Tensor:
    normed = ops.add_normed_(t[0][1:], t[1], None, t[2], 1e-5)
    return torch.cat((t[0], normed, ops.add_normed_(t[0][1:], t[1], None, None, 1e-5)))


def rotary(ops: TorchOps, t: list[torch.Tensor], adjacent: bool = False) -> torch.Tensor:
    ops.rotary_(t[0][:, : t[0].shape[1] - 1], t[1], t[2], adjacent)
    return t[0]


def gate(ops: TorchOps, t: list[torch.Tensor], name: str) -> torch.Tensor:
    return ops.act_and_mul(name)(t[0])


CASES: dict[str, tuple[Operation, tuple[tuple[int, ...], ...]]] = {
    "rms_norm": (rms_norm, ((3, 64), (64,))),
    "rms_norm, no power of two": (rms_norm, ((2, 45), (45,))),
    "head_norm": (head_norm, ((3, 5, 16), (16,))),
    "add_normed, and a norm of the sum": (add_normed, ((4, 45), (3, 45), (45,), (45,))),
    "add_normed": (lambda ops, t: add_normed(ops, t, False), ((4, 64), (3, 64), (64,), (64,))),
    "added": (added, ((4, 45), (3, 45), (45,))),
    "rotary": (rotary, ((3, 4, 16), (3, 8), (3, 8))),
    "rotary, a part, many heads": (rotary, ((2, 12, 20), (2, 6), (2, 6))),
    "rotary, adjacent": (lambda ops, t: rotary(ops, t, True), ((3, 4, 16), (3, 8), (3, 8))),
    "silu": (lambda ops, t: gate(ops, t, "silu"), ((3, 2 * 50),)),
    "silu, many columns": (lambda ops, t: gate(ops, t, "swish"), ((2, 2 * 1500),)),
    "gelu": (lambda ops, t: gate(ops, t, "gelu_pytorch_tanh"), ((3, 2 * 50),)),
}


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_float64(ops: RowOps, case: str, dtype: torch.dtype) -> None:
    operation, shapes = CASES[case]
    inputs = [random(*shape).to(dtype) for shape in shapes]
    exact = operation(TorchOps(), [each.double() for each in inputs])
    found = operation(ops, [each.clone() for each in inputs])
    assert found.dtype == dtype
    assert (found.double() - exact).norm() <= LIMITS[dtype] * exact.norm()


def test_weights_in_float32_beside_activations_in_bfloat16(ops: RowOps) -> None:
    x, weight = random(3, 64).bfloat16(), random(64)
    exact = TorchOps().rms_norm(x.double(), weight.double(), 1e-6)
    found = ops.rms_norm(x, weight, 1e-6)
    assert found.dtype == torch.bfloat16
    assert (found.double() - exact).norm() <= LIMITS[torch.bfloat16] * exact.norm()


def test_no_rows(ops: RowOps) -> None:
    assert ops.rms_norm(torch.empty(0, 64), random(64), 1e-6).shape == (0, 64)
    assert ops.act_and_mul("silu")(torch.empty(0, 64)).shape == (0, 32)


def test_other_activations_are_torch_s(ops: RowOps) -> None:
    x = random(3, 64)
    assert torch.equal(ops.act_and_mul("relu")(x.clone()), TorchOps().act_and_mul("relu")(x.clone()))


@pytest.mark.parametrize("kernel", ["norm_rows", "add_normed_rows", "rotate_rows", "gate_rows"])
def test_a_kernel_that_fails_its_test_is_left_to_torch(
    kernel: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        """Does not compile."""

        def __getitem__(self, grid: object) -> None:
            raise RuntimeError("no such instruction")

    assert len(working_kernels(CPU)) == 4
    monkeypatch.setattr(row_ops, kernel, Broken())
    assert len(working_kernels(CPU)) == 3
    assert "no such instruction" in caplog.text


def test_a_kernel_with_wrong_results_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_ops, "_norm", lambda x, weight, out, eps: out.fill_(torch.nan))
    assert working_kernels(CPU) == {"add_normed_", "rotary_", "act_and_mul"}
