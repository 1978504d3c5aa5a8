"""Log-probabilities of sampled tokens, for the sequences that asked for them.

They are the log-softmax of the model's own logits: before logits processors, temperature and truncation. So they mean
the same under any sampling parameters, and those of a row do not depend on other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmserve.messages.logprobs import MAX_TOP, pack
from mmserve.model_backend.worker.sampling.sampler import NOT_FINITE, SampleRow


class ModelLogprobs:
    """Keeps the logits [S, vocab] of the rows that asked, before ``Sampler.sample`` changes them.

    Costs nothing when no row asked.
    """

    def __init__(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> None:
        self._requested = [(index, top) for index, row in enumerate(rows) if (top := row.sampling.logprobs) is not None]
        self._logits = logits[[index for index, _ in self._requested]] if self._requested else None

    def of_tokens(self, chosen: Sequence[int]) -> list[tuple[int, bytes]]:
        """(row, its packed log-probabilities) for the rows that asked and got a token.

        ``chosen``: the sampled token of every row, or NOT_FINITE.
        """
        if self._logits is None:
            return []
        tokens = [chosen[index] for index, _ in self._requested]
        logprobs = torch.log_softmax(self._logits, dim=-1, dtype=torch.float32)
        own = logprobs.gather(1, torch.tensor(tokens, device=logprobs.device).clamp_(min=0)[:, None])
        likely = _most_likely(logprobs) if any(top for _, top in self._requested) else [[]] * len(tokens)
        return [
            (index, pack([(token, logprob), *pairs[:top]]))
            for (index, top), token, logprob, pairs in zip(
                self._requested, tokens, own.squeeze(1).tolist(), likely, strict=True
            )
            if token != NOT_FINITE
        ]


def _most_likely(logprobs: torch.Tensor) -> list[list[tuple[int, float]]]:
    """Each row's (id, log-probability), most likely first; equal ones by id, as greedy sampling takes them.

    Always MAX_TOP of them, so that where equal ones are cut does not depend on what other rows ask for.
    """
    values, ids = logprobs.topk(min(MAX_TOP, logprobs.shape[1]), dim=-1)
    return [
        sorted(zip(row_ids, row_values, strict=True), key=lambda pair: (-pair[1], pair[0]))
        for row_ids, row_values in zip(ids.tolist(), values.tolist(), strict=True)
    ]
