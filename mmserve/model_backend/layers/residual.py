"""The residual stream of a decoder, and what is still to be added to it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mmserve.model_backend.layers.linear import ColumnParallelLinear, RowParallelLinear
from mmserve.model_backend.layers.norm import RmsNorm
from mmserve.model_backend.layers.ops import Addend, Multiply


class Residual:
    """Hidden states [T, hidden], which layers add to in place.

    What a product does not add itself, such as one that ranks have parts of, waits for the norm that reads the stream
    next, which adds it in its own launch.
    """

    def __init__(self, hidden: torch.Tensor) -> None:
        self._hidden = hidden
        self._addend: Addend | None = None
        self._norm: RmsNorm | None = None

    def __len__(self) -> int:
        return len(self._hidden)

    def add(self, x: torch.Tensor, norm: RmsNorm | None = None) -> None:
        """``x``, or the norm of it."""
        self.settled()
        self._addend, self._norm = Addend(x, None if norm is None else norm.weight), norm

    def add_product(
        self, linear: RowParallelLinear, x: torch.Tensor, *, after: RmsNorm | None, multiply: Multiply | None = None
    ) -> None:
        """The product, or the norm ``after`` of it."""
        if after is None and linear.adds_residual:
            self._hidden = linear(x, self.settled(), multiply)
        else:
            self.add(linear(x, None, multiply), after)

    def add_block(
        self,
        block: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor],
        norm: RmsNorm,
        after: RmsNorm | None,
        *,
        adds_residual: bool = True,
    ) -> None:
        """What it makes of the stream's ``norm``, or the norm ``after`` of that. It adds to a residual it is given.

        ``adds_residual``: as ``RowParallelLinear`` has it.
        """
        x = norm(self._hidden, self._taken())
        if after is None and adds_residual:
            self._hidden = block(x, self._hidden)
        else:
            self.add(block(x, None), after)

    def product(self, norm: RmsNorm, linear: ColumnParallelLinear) -> torch.Tensor:
        """Of the stream's norm."""
        return norm.product(self._hidden, linear, self._taken())

    def keep(self, rows: torch.Tensor) -> None:
        """These alone go on, as a copy."""
        self._hidden = self.settled()[rows]

    def settled(self) -> torch.Tensor:
        """The hidden states, with all that was added."""
        if (addend := self._taken()) is not None:
            if self._norm is None:
                self._hidden.add_(addend.values)
            else:
                self._norm.add_to(self._hidden, addend.values)
        return self._hidden

    def _taken(self) -> Addend | None:
        addend, self._addend = self._addend, None
        return addend
