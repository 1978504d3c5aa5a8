"""Draws tokens by Gumbel-max in torch, with random numbers that are a function of a row's key and of the token.

The token with the largest weight / E is drawn, where E is exponentially distributed: ``log(weight / E)`` is the logit
over the temperature plus Gumbel noise. Integers are exact, and each operation on float32 numbers is one that IEEE 754
rounds. So every device computes the same numbers, as do the kernels for CPUs (csrc/sampling/race.h).
"""

from __future__ import annotations

import torch

_WORD = (1 << 32) - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B1, 0x7FEB352D, 0x846CA68B
_BITS = 31
_QUARTER = 1 << (_BITS - 2)
"""Random bits that stand for 0.25."""
_THREE_QUARTERS = 0x3F400000
"""The float 0.75."""
_MANTISSA_BITS = 23
_LOG2 = (
    *(7.806575298e-02, -1.742292643e-01, 2.163247317e-01, -2.427236140e-01, 2.881915271e-01),
    *(-3.605759144e-01, 4.809020758e-01, -7.213484645e-01, 1.442695022e00),
)
"""Coefficients of f**8 to f**0 in log2(1 + f) / f for f from -0.25 to 0.5: relative error below 1.1e-7 in float32."""


def draw(weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """int64 [R]: a token of each row of weights, float32 [R, vocab]; the first of equally good ones.

    ``keys``: int64 [R, 2], the halves of each row's 64 random bits.
    """
    return weights.div(exponential(random_bits(keys, weights.shape[1]))).argmax(dim=-1)


def random_bits(keys: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """int64 [R, vocab]: 31 random bits for each token. Products of int64 keep the low bits."""
    tokens = torch.arange(vocab_size, device=keys.device)
    x = (tokens * _GOLDEN + keys[:, :1]) & _WORD
    x = ((x ^ (x >> 16)) * _FIRST) & _WORD
    x = (((x ^ (x >> 15)) + keys[:, 1:]) * _SECOND) & _WORD
    return (x ^ (x >> 16)) >> 1


def exponential(bits: torch.Tensor) -> torch.Tensor:
    """float32: ``-log2(1 - u)`` where ``u = (bits + 0.5) / 2**31``."""
    rest = _fraction((1 << _BITS) - 1 - bits)  # 1 - u = 2**n * m, with m from 0.75 to 1.5
    number = rest.view(torch.int32)
    n = (number - _THREE_QUARTERS) >> _MANTISSA_BITS
    m = (number - (n << _MANTISSA_BITS)).view(torch.float32)
    is_small = bits < _QUARTER
    f = torch.where(is_small, -_fraction(bits), m - 1.0)  # a small u is not rounded as 1 - u is
    y = f * _LOG2[0]
    for coefficient in _LOG2[1:-1]:
        y.add_(coefficient).mul_(f)
    return y.add_(_LOG2[-1]).mul_(f).add_(n.masked_fill_(is_small, 0).float()).neg_()


def _fraction(bits: torch.Tensor) -> torch.Tensor:
    return bits.float().add_(0.5).mul_(2.0**-_BITS)
