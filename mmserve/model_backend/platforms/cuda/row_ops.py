"""Norms, rotation and gates on a GPU, in one launch each, where Triton's kernels are tested; else torch's operations.

Not rounded between their steps, so their errors are those of torch or smaller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import torch
import triton

from mmserve.model_backend.layers.ops import Activation
from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu, warps_of_row
from mmserve.model_backend.platforms.cuda.kernels.rows import add_normed_rows, gate_rows, norm_rows, rotate_rows
from mmserve.model_backend.platforms.cuda.trying import problem_of
from mmserve.model_backend.platforms.torch_ops import TorchOps

_COLUMNS, _HEADS = 1024, 8
"""Of a program."""
_LONGEST_NORM = 1 << 14
"""Numbers that a program holds at once."""
GATES = {"silu": False, "swish": False, "gelu_new": True, "gelu_pytorch_tanh": True}
"""By the name in config.json: whether it is GELU."""
_TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Of the difference from torch, which rounds too, as a part of the result."""

logger = logging.getLogger(__name__)


class RowOps(TorchOps):
    """See ``layers.ops.Ops``. ``tested``: names of methods whose kernels may be used."""

    tested: frozenset[str] = frozenset()

    @property
    def adds_in_norms(self) -> bool:
        return "add_normed_" in self.tested

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if "rms_norm" not in self.tested or not fits(x):
            return super().rms_norm(x, weight, eps)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _norm(x[:, None], weight, out[:, None], eps)
        return out

    def head_norm_(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        if "rms_norm" not in self.tested or not fits(x):
            super().head_norm_(x, weight, eps)
        else:
            _norm(x, weight, x, eps)

    def add_normed_(
        self, hidden: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, then: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        if "add_normed_" not in self.tested or not (fits(x) and fits(hidden)):
            return super().add_normed_(hidden, x, weight, then, eps)
        rows, size = x.shape
        out = hidden if then is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
        weights = (x if each is None else each for each in (weight, then))
        with current_gpu(x):
            add_normed_rows[(rows,)](
                *(hidden, x, *weights, out, hidden.stride(0), x.stride(0), eps),
                SIZE=size,
                PADDED=triton.next_power_of_2(size),
                NORM=weight is not None,
                THEN=then is not None,
                num_warps=warps_of_row(size),
            )
        return out

    def rotary_(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, adjacent: bool = False) -> None:
        if "rotary_" not in self.tested or not (fits(x) and cos.is_contiguous() and sin.is_contiguous()):
            return super().rotary_(x, cos, sin, adjacent)
        rows, heads, _ = x.shape
        pairs = cos.shape[-1]
        with current_gpu(x):
            rotate_rows[(rows, triton.cdiv(heads, _HEADS))](
                *(x, cos, sin, heads, x.stride(0), x.stride(1)),
                PAIRS=pairs,
                PADDED=triton.next_power_of_2(pairs),
                HEADS=_HEADS,
                ADJACENT=adjacent,
            )

    def act_and_mul(self, name: str) -> Activation:
        plain = super().act_and_mul(name)
        if "act_and_mul" not in self.tested or name not in GATES:
            return plain
        return partial(_gated, plain, GATES[name])


def fits(x: torch.Tensor) -> bool:
    """A kernel can compute it: rows, of numbers that lie next to each other."""
    return x.numel() > 0 and x.stride(-1) == 1 and x.shape[-1] <= _LONGEST_NORM


def _norm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float) -> None:
    """[rows, heads, size], each head by itself."""
    rows, heads, size = x.shape
    with current_gpu(x):
        norm_rows[(rows, heads)](
            *(x, weight, out, x.stride(0), x.stride(1), out.stride(0), out.stride(1), eps),
            SIZE=size,
            PADDED=triton.next_power_of_2(size),
            num_warps=warps_of_row(size),
        )


def _gated(plain: Activation, gelu: bool, x: torch.Tensor) -> torch.Tensor:
    if x.dim() != 2 or not x.numel() or x.stride(1) != 1:
        return plain(x)
    rows, size = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    with current_gpu(x):
        gate_rows[(rows, triton.cdiv(size, _COLUMNS))](*(x, out, x.stride(0)), SIZE=size, COLUMNS=_COLUMNS, GELU=gelu)
    return out


def working_kernels(device: torch.device) -> frozenset[str]:
    """For ``RowOps.tested``: kernels that compute what torch does on this device, in every dtype. Others are logged."""
    ops = RowOps()
    ops.tested = frozenset(_TRIALS)
    return frozenset(name for name in _TRIALS if _works(name, ops, device))


def _works(name: str, ops: RowOps, device: torch.device) -> bool:
    if problem := problem_of(lambda: _problem(name, ops, device)):
        logger.warning("%s is computed by torch, not by the kernel: %s", name, problem)
    return not problem


def _problem(name: str, ops: RowOps, device: torch.device) -> str:
    differences = [_difference(_TRIALS[name], ops, device, dtype) / limit for dtype, limit in _TOLERANCES.items()]
    return "" if all(found < 1 for found in differences) else f"results differ: {differences}"


Trial = Callable[[TorchOps, torch.Tensor], torch.Tensor]


def _difference(trial: Trial, ops: RowOps, device: torch.device, dtype: torch.dtype) -> float:
    """Between the kernel and torch, of the same numbers [5, 6, 32]."""
    numbers = torch.randn(5, 6, 32, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    found, expected = (trial(each, numbers.clone()).float() for each in (ops, TorchOps()))
    return float((found - expected).norm() / expected.norm())


def _norm_trial(ops: TorchOps, x: torch.Tensor) -> torch.Tensor:
    weight = x[0, 0].clone()
    ops.head_norm_(x[:, 1:4], weight, 1e-6)
    return ops.rms_norm(x.flatten(1), x[0].flatten().clone(), 1e-6)


def _add_trial(ops: TorchOps, x: torch.Tensor) -> torch.Tensor:
    hidden, weight = x.flatten(1).clone(), x[0].flatten().clone()
    normed = ops.add_normed_(hidden, x.flatten(1), weight, weight, 1e-6)
    both = hidden, normed, ops.add_normed_(hidden.clone(), x.flatten(1), None, weight, 1e-6)
    return torch.cat((*both, ops.add_normed_(hidden, normed, weight, None, 1e-6)))


def _rotary_trial(ops: TorchOps, x: torch.Tensor) -> torch.Tensor:
    angles = x[:, 0, :12].float()
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    ops.rotary_(x[:, 1:5], cos, sin)
    ops.rotary_(x[:, 1:5], cos, sin, adjacent=True)
    return x


def _gate_trial(ops: TorchOps, x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(1)
    return torch.cat([ops.act_and_mul(name)(rows.clone()) for name in ("silu", "gelu_pytorch_tanh")])


_TRIALS: dict[str, Trial] = {
    "rms_norm": _norm_trial,
    "add_normed_": _add_trial,
    "rotary_": _rotary_trial,
    "act_and_mul": _gate_trial,
}
