"""Log-probabilities of sampled tokens, for the sequences that asked for them.

They are the log-softmax of the model's own logits: before logits processors, temperature and truncation. So they mean
the same under any sampling parameters, and those of a row do not depend on other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmserve.messages.logprobs import MAX_TOP, pack
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.transfers import HostCopy, Transfers


class ModelLogprobs:
    """Keeps the logits [S, vocab] of the rows that asked, before ``Sampler.sample`` changes them.

    ``params``: of each row. Costs nothing when no row asked.
    """

    def __init__(self, logits: torch.Tensor, params: Sequence[SamplingParams], transfers: Transfers) -> None:
        self._transfers = transfers
        self._requested = [(index, top) for index, each in enumerate(params) if (top := each.logprobs) is not None]
        self._logits: torch.Tensor | None = None
        if self._requested:
            self._rows = transfers.to_device(torch.tensor([index for index, _ in self._requested]))
            self._logits = logits[self._rows]
        self._own: HostCopy | None = None
        self._top: tuple[HostCopy, HostCopy] | None = None

    def compute(self, chosen: torch.Tensor) -> None:
        """``chosen``: int64 [S], each row's token, negative if it has none. Does not wait for the device."""
        if self._logits is None:
            return
        logprobs = torch.log_softmax(self._logits, dim=-1, dtype=torch.float32)
        tokens = chosen[self._rows].clamp(min=0)
        self._own = self._transfers.to_host(logprobs.gather(1, tokens[:, None]).squeeze(1))
        if any(top for _, top in self._requested):
            ids, values = most_likely(logprobs)
            self._top = self._transfers.to_host(ids), self._transfers.to_host(values)
        self._logits = None

    def pack(self, chosen: Sequence[int]) -> list[tuple[int, bytes]]:
        """(row, packed log-probabilities) for the rows that asked and got a token; ``chosen`` as in ``compute``.

        Waits for the copies, which are done when that of the tokens is."""
        if self._own is None:
            return []
        likely: Sequence[list[tuple[int, float]]] = [[]] * len(self._requested)
        if self._top is not None:
            ids, values = (copy.wait().tolist() for copy in self._top)
            likely = [_sorted(*pair) for pair in zip(ids, values, strict=True)]
        return [
            (index, pack([(chosen[index], logprob), *pairs[:top]]))
            for (index, top), logprob, pairs in zip(self._requested, self._own.wait().tolist(), likely, strict=True)
            if chosen[index] >= 0
        ]


def most_likely(logprobs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and log-probabilities [R, n] of each row's most likely tokens.

    Always MAX_TOP of them, so that where equal ones are cut does not depend on what other rows ask for.
    """
    values, ids = logprobs.topk(min(MAX_TOP, logprobs.shape[1]), dim=-1)
    return ids, values


def _sorted(ids: list[int], values: list[float]) -> list[tuple[int, float]]:
    """Most likely first; equal ones by id, the order in which greedy sampling takes them."""
    return sorted(zip(ids, values, strict=True), key=lambda pair: (-pair[1], pair[0]))
