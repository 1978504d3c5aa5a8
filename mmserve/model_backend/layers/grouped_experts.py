"""The interface of platforms that compute all experts of a layer at once, in work that waits for nothing."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch

from mmserve.checkpoint.spec import MoeSpec
from mmserve.model_backend.layers.linear_method import LinearMethod
from mmserve.model_backend.layers.ops import Activation


class ExpertsShape(NamedTuple):
    """This rank's part of a layer's experts, each a gated MLP."""

    moe: MoeSpec
    hidden_size: int
    intermediate_size: int
    """Of each expert, on this rank."""
    act_and_mul: Activation


class GroupedExperts(Protocol):
    """The experts of one layer. What is launched depends on the number of rows alone."""

    def gate_up(self, expert: int) -> LinearMethod:
        """Its matrix [2 * intermediate, hidden], for loading."""
        ...

    def down(self, expert: int) -> LinearMethod:
        """Its matrix [hidden, intermediate], for loading."""
        ...

    def forward(self, x: torch.Tensor, logits: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """[T, hidden] and the router's [T, experts] -> [T, hidden], this rank's summand.

        With ``residual`` the result is added to it in place and returned.
        """
        ...


def alone(shape: ExpertsShape) -> GroupedExperts | None:
    """Each expert is a layer of its own."""
    return None
