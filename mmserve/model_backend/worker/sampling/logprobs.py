"""What the model itself thought of the tokens that were sampled, for the sequences that asked.

Log-softmax of the logits as they come from the model: before penalties, biases and masks, before temperature and
truncation. So the numbers mean the same under any sampling parameters, and a row's depend on no other row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmserve.messages.logprobs import MAX_TOP, pack
from mmserve.model_backend.worker.sampling.sampler import NOT_FINITE, SampleRow


class ModelLogprobs:
    """Of the rows of logits [S, vocab] that asked, taken before ``sample`` edits them. Costs nothing when none did."""

    def __init__(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
        self._asked = [(index, top) for index, row in enumerate(rows) if (top := row.sampling.logprobs) is not None]
        self._logits = logits[[index for index, _ in self._asked]] if self._asked else None

    def of(self, chosen: Sequence[int]) -> list[tuple[int, bytes]]:
        """(row, its packed log-probabilities) for the rows that asked and got a token; ``chosen``: all rows' tokens."""
        if self._logits is None:
            return []
        tokens = [chosen[index] for index, _ in self._asked]
        logprobs = torch.log_softmax(self._logits, dim=-1, dtype=torch.float32)
        own = logprobs.gather(1, torch.tensor(tokens, device=logprobs.device).clamp_(min=0)[:, None])
        likely = _most_likely(logprobs) if any(top for _, top in self._asked) else [[]] * len(tokens)
        return [
            (index, pack([(token, logprob), *pairs[:top]]))
            for (index, top), token, logprob, pairs in zip(
                self._asked, tokens, own.squeeze(1).tolist(), likely, strict=True
            )
            if token != NOT_FINITE
        ]


def _most_likely(logprobs: torch.Tensor) -> list[list[tuple[int, float]]]:
    """Each row's (id, log-probability), most likely first, of equal ones the lower id: what greedy sampling takes.

    Always as many, whatever is asked: where equal ones are cut must not depend on the other rows.
    """
    values, ids = logprobs.topk(min(MAX_TOP, logprobs.shape[1]), dim=-1)
    return [
        sorted(zip(row_ids, row_values, strict=True), key=lambda pair: (-pair[1], pair[0]))
        for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True)
    ]
