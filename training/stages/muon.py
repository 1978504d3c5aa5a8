"""Muon in float32: momentum made orthogonal by Newton-Schulz steps, matrices of one shape done in one batch.

torch.optim.Muon always iterates in bfloat16, which a CPU without bfloat16 arithmetic does about twenty times slower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(x: Tensor, steps: int = 4) -> Tensor:
    """(n, rows, columns) -> matrices with about the same directions and singular values near one."""
    a, b, c = COEFFICIENTS
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, scaled to AdamW's usual update size, with decoupled weight decay."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.02) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every matrix that has a gradient."""
        for group in self.param_groups:
            alike: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    alike[parameter.shape].append(parameter)
            for parameters in alike.values():
                self.update(parameters, group)

    def update(self, parameters: list[nn.Parameter], group: dict[str, float]) -> None:
        """Updates matrices of one shape."""
        moved = []
        for parameter in parameters:
            state = self.state[parameter]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(parameter)
            state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
            moved.append(parameter.grad.lerp(state["momentum"], group["momentum"]))
        changes = orthogonal(torch.stack(moved))
        size = 0.2 * max(changes.shape[1:]) ** 0.5
        for parameter, change in zip(parameters, changes, strict=True):
            parameter.mul_(1 - group["lr"] * group["decay"]).add_(change, alpha=-group["lr"] * size)
