"""Draws tokens on a GPU in one launch where Triton's kernel is tested; else with torch's operations."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu
from mmserve.model_backend.platforms.cuda.kernels.draw import choose_rows, draw_rows
from mmserve.model_backend.platforms.cuda.trying import problem_of
from mmserve.model_backend.platforms.sampling import GREEDY, NOT_FINITE, Draw, TorchSampling
from mmserve.model_backend.transfers import Transfers

_BLOCK, _WARPS = 1024, 8

logger = logging.getLogger(__name__)


class TritonSampling(TorchSampling):
    """See ``platforms.sampling.TokenSampling``. Chooses the tokens of ``TorchSampling``, to the bit."""

    in_graphs = True

    def choose_by(self, logits: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        weights = logits.to(torch.float32, copy=True)
        chosen = torch.empty(len(weights), dtype=torch.int64, device=weights.device)
        with current_gpu(weights):
            choose_rows[(len(weights),)](
                *(weights, numbers, chosen, weights.stride(0), weights.shape[1]),
                NOT_FINITE=NOT_FINITE,
                BLOCK=_BLOCK,
                num_warps=_WARPS,
                enable_fp_fusion=False,
            )
        return chosen

    def _draw(self, logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
        chosen = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        with current_gpu(logits):
            draw_rows[(len(logits),)](
                *(logits, self._numbers(draws), chosen, logits.stride(0), logits.shape[1]),
                TOP_K=any(draw.top_k > 0 for draw in draws),
                TOP_P=any(draw.top_p < 1 for draw in draws),
                BLOCK=_BLOCK,
                num_warps=_WARPS,
                enable_fp_fusion=False,
            )
        return chosen


def working_sampling(transfers: Transfers) -> TorchSampling:
    """The kernel if it chooses torch's tokens on this device. The test also compiles each of its forms."""
    plain, kernel = TorchSampling(transfers), TritonSampling(transfers)
    if not (problem := problem_of(lambda: _problem(plain, kernel, transfers))):
        return kernel
    logger.warning("tokens are drawn by torch, not by the kernel: %s", problem)
    return plain


def _problem(plain: TorchSampling, kernel: TorchSampling, transfers: Transfers) -> str:
    return "" if all(_same_tokens(plain, kernel, transfers, **cuts) for cuts in _CUTS) else "its tokens differ"


_CUTS: tuple[dict[str, float], ...] = ({"min_p": 0.1}, {"top_k": 9}, {"top_p": 0.8}, {"top_k": 900, "top_p": 0.99})


def _same_tokens(plain: TorchSampling, kernel: TorchSampling, transfers: Transfers, **cuts: float) -> bool:
    free = Draw(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0, key=0)._replace(**cuts)  # type: ignore[arg-type]
    draws = [free._replace(key=(row + 1) * 0x123456789ABCDEF) for row in range(2)]
    logits = transfers.to_device(3 * torch.randn(2, 1100, generator=torch.Generator().manual_seed(0)))
    found = [each.choose(logits, draws, may_ban=False) for each in (plain, kernel)]
    numbers = torch.tensor([draw.numbers for draw in (draws[0], GREEDY)], dtype=torch.float64)
    found_by = [each.choose_by(logits, transfers.to_device(numbers)) for each in (plain, kernel)]
    return torch.equal(*found) and torch.equal(*found_by)
