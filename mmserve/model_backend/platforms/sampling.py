"""Chooses one token of each row of logits: the interface of platforms, and its reference in torch.

The weight of a logit x in a row whose largest is m is ``2**42 * exp((x - m) / temperature)``, rounded to an integer.
Sums of integers are exact in any order, and the weights come from elementary float32 operations that every device
rounds alike, as does the random number of each token (``gumbel``). So equal logits, parameters and keys choose equal
tokens on every platform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from mmserve.model_backend.platforms import gumbel
from mmserve.model_backend.platforms.thresholds import kth_largest, nucleus_floor
from mmserve.model_backend.transfers import PlainTransfers, Transfers

NOT_FINITE, NO_TOKEN_ALLOWED = -1, -2
"""In place of a token id, all of which are 0 or more. The kernels' own numbers."""
UNIT_BITS = 42
"""The largest logit of a row weighs 2**42, so an int64 holds the sum of a vocabulary of a million."""
_LOG2_E = math.log2(math.e)
_LOWEST = -64.0
"""Powers of two below have no weight."""
_POWER_OF_TWO = (1.535336196e-04, 1.339887502e-03, 9.618436918e-03, 5.550332367e-02, 2.402264774e-01, 6.931471825e-01)
"""Coefficients of r**6 to r**1 in 2**r for r within 0.5 of zero: relative error below 1.1e-7 in float32."""
_EXPONENT_BIAS, _MANTISSA_BITS = 127, 23
_WORD_BITS = 32
_CPU_CHUNK_ELEMENTS = 1 << 18
"""On a CPU, rows are taken in chunks of so many logits, so that intermediate results stay in its cache."""


class Draw(NamedTuple):
    """How a row's token is drawn."""

    temperature: float
    """0: the largest logit, the first of equal ones."""
    top_k: int
    """0 or less: off."""
    top_p: float
    min_p: float
    key: int
    """64 random bits, from which those of each token follow."""

    @property
    def scale(self) -> float:
        """From differences of logits to exponents of two; 0 without a temperature."""
        return _LOG2_E / self.temperature if self.temperature else 0.0

    @property
    def min_weight(self) -> float:
        return math.ldexp(self.min_p, UNIT_BITS) if self.min_p > 0 else 0.0

    @property
    def numbers(self) -> tuple[float, ...]:
        """As kernels take them: six in double precision, the last two of which are the key's halves."""
        halves = self.key & (1 << _WORD_BITS) - 1, self.key >> _WORD_BITS
        return self.scale, max(self.top_k, 0), self.top_p, self.min_weight, *halves


GREEDY = Draw(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, key=0)
NUM_DRAW_NUMBERS = len(GREEDY.numbers)


class TokenSampling(Protocol):
    """Logits are float32 [S, vocab]. Does not wait for the device."""

    def finite(self, logits: torch.Tensor) -> torch.Tensor:
        """bool [S]: rows of which all logits are finite."""
        ...

    def ban(self, logits: torch.Tensor, rows: Sequence[int], allowed: torch.Tensor) -> None:
        """Set the logits of tokens that a row may not choose to -inf.

        ``allowed``: int32 [len(rows), vocab / 32 rounded up] on the host. Bit b of word w of ``allowed[i]`` is 1 if
        ``rows[i]`` may choose token 32 w + b. Rows are distinct. ``allowed`` may be changed after the call.
        """
        ...

    def choose(self, logits: torch.Tensor, draws: Sequence[Draw], *, may_ban: bool) -> torch.Tensor:
        """int64 [S]: token ids, NOT_FINITE or NO_TOKEN_ALLOWED. Logits stay as they are.

        ``may_ban``: -inf stands for a token that must not be chosen, and the other logits are known to be finite.
        Otherwise -inf is not finite.
        """
        ...

    @property
    def in_graphs(self) -> bool:
        """True if ``choose_by`` is one launch, which can be captured in a CUDA graph."""
        ...

    def choose_by(self, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """As ``choose`` without bans. ``logits``: of any dtype; they stay as they are. ``numbers``: ``Draw.numbers`` of
        each row on the device, float64 [S, 6]."""
        ...


class TorchSampling:
    """See ``TokenSampling``. The reference, for any device."""

    in_graphs = False

    def __init__(self, transfers: Transfers | None = None) -> None:
        self._transfers = transfers or PlainTransfers(torch.device("cpu"))

    def finite(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.isfinite(logits.sum(dim=-1))

    def ban(self, logits: torch.Tensor, rows: Sequence[int], allowed: torch.Tensor) -> None:
        words, index = self._transfers.to_device(allowed), self._transfers.to_device(torch.tensor(rows))
        shifts = torch.arange(_WORD_BITS, dtype=torch.int32, device=logits.device)
        bits = (words.unsqueeze(-1) >> shifts) & 1
        banned = bits.view(len(rows), -1)[:, : logits.shape[1]] == 0
        logits.index_copy_(0, index, logits.index_select(0, index).masked_fill_(banned, float("-inf")))

    def choose(self, logits: torch.Tensor, draws: Sequence[Draw], *, may_ban: bool) -> torch.Tensor:
        chosen = _argmax(logits)
        largest = logits.gather(1, chosen[:, None]).squeeze(1)
        random = [index for index, draw in enumerate(draws) if draw.temperature]
        size = max(1, _CPU_CHUNK_ELEMENTS // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(random))
        for first in range(0, len(random), size):
            chunk = random[first : first + size]
            rows = self._transfers.to_device(torch.tensor(chunk))
            chosen[rows] = self._draw(logits[rows], [draws[index] for index in chunk])
        chosen.masked_fill_(~torch.isfinite(largest) if may_ban else ~self.finite(logits), NOT_FINITE)
        return chosen.masked_fill_(largest == float("-inf"), NO_TOKEN_ALLOWED) if may_ban else chosen

    def choose_by(self, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        copy = logits.to(torch.float32, copy=True)
        chosen, finite = copy.argmax(dim=-1), self.finite(copy)
        drawn = _drawn(copy, numbers, _Cuts(top_k=True, top_p=True, min_p=True))
        return torch.where(numbers[:, 0] > 0, drawn, chosen).masked_fill_(~finite, NOT_FINITE)

    def _draw(self, logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
        """int64 [R] from float32 [R, vocab], which it overwrites."""
        return _drawn(logits, self._numbers(draws), _Cuts.of(draws))

    def _numbers(self, draws: Sequence[Draw]) -> torch.Tensor:
        return self._transfers.to_device(torch.tensor([draw.numbers for draw in draws], dtype=torch.float64))


class _Cuts(NamedTuple):
    """Those that some row has."""

    top_k: bool
    top_p: bool
    min_p: bool

    @classmethod
    def of(cls, draws: Sequence[Draw]) -> _Cuts:
        return cls(
            any(draw.top_k > 0 for draw in draws),
            any(draw.top_p < 1 for draw in draws),
            any(draw.min_p > 0 for draw in draws),
        )


def _drawn(logits: torch.Tensor, numbers: torch.Tensor, cuts: _Cuts) -> torch.Tensor:
    """int64 [R] from float32 [R, vocab], which it overwrites: weights, top-k, top-p, min-p, Gumbel-max."""
    scale, top_k, top_p, min_weight = (numbers[:, index, None] for index in range(4))
    weights = _weights_(logits, scale.float())
    if cuts.top_k:
        weights.masked_fill_(weights < kth_largest(weights, top_k.long()), 0)
    if cuts.top_p:
        weights.masked_fill_(weights < nucleus_floor(weights, _needed(weights, top_p)), 0)
    if cuts.min_p:
        weights.masked_fill_(weights < min_weight.float(), 0)
    return gumbel.draw(weights, numbers[:, 4:].long())


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    if logits.device.type == "cpu":  # numpy's argmax is vectorised: ten times as fast over a large vocabulary
        return torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.argmax(dim=-1)


def _weights_(logits: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """In place: the weights, integers in float32. Every step is one rounded operation, as in the C++ kernels."""
    exponents = logits.sub_(logits.amax(dim=-1, keepdim=True)).mul_(scale).clamp_(min=_LOWEST)
    whole = exponents.round()
    part = exponents.sub_(whole)
    powers = part * _POWER_OF_TWO[0]
    for coefficient in _POWER_OF_TWO[1:]:
        powers.add_(coefficient).mul_(part)
    powers.add_(1.0)
    bits = whole.int().add_(_EXPONENT_BIAS + UNIT_BITS).bitwise_left_shift_(_MANTISSA_BITS)
    return powers.mul_(bits.view(torch.float32)).round_()


def _needed(weights: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """int64 [R, 1]: the part of each row's sum that top-p keeps, rounded down, at least 1; 0 where top-p is off. The
    product is in double precision on every platform."""
    totals = weights.sum(dim=-1, keepdim=True, dtype=torch.int64)
    return (totals.double() * top_p).long().clamp_(min=1).masked_fill_(top_p >= 1, 0)
