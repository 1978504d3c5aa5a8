"""What penalties cost a token: sampling one sequence with and without them, at several context lengths.

    python -m benchmarks.kernels.penalties [--json FILE]

All three penalties (repetition, presence, frequency) on a sequence whose prompt and output are random ids of the
vocabulary, half of its tokens each. One token is sampled greedily and added, as in a decode step; the model itself is
not run. Medians of single tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

from benchmarks.load.report import Row, table, write_json
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.worker.sampling.sampler import Sampler, SampleRow

VOCAB_SIZE = 32_000
CONTEXTS = (1_024, 4_096, 16_384)
TOKENS = 300
_GREEDY = SamplingParams(max_tokens=1_000, temperature=0.0)
_PENALISED = SamplingParams(
    max_tokens=1_000, temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in a rank
    rows = [_measure(context) for context in CONTEXTS]
    print(table(rows))
    write_json(arguments.json, rows)


@torch.inference_mode()
def _measure(context: int) -> Row:
    without_us, with_us = (_token_us(sampling, context) for sampling in (_GREEDY, _PENALISED))
    return {
        "context tokens": context,
        "without us": without_us,
        "with penalties us": with_us,
        "penalties us": with_us - without_us,
    }


def _token_us(sampling: SamplingParams, context: int) -> float:
    tokens = np.random.default_rng(1).integers(0, VOCAB_SIZE, context)
    logits = torch.randn(TOKENS, VOCAB_SIZE, generator=torch.manual_seed(1))
    sampler = Sampler(VOCAB_SIZE, platform_for("cpu", "float32").sampling(), PlainTransfers(logits.device))
    sampler.add_slot(0, sampling, tokens[: context // 2], tokens[context // 2 :])
    times_s = []
    for index in range(TOKENS):
        row = SampleRow(0, sampling, context + index)
        started_s = time.perf_counter()
        [token_id] = sampler.sample(logits[index : index + 1], [row]).tolist()
        sampler.update(0, (token_id,))
        times_s.append(time.perf_counter() - started_s)
    return statistics.median(times_s) * 1e6


if __name__ == "__main__":
    main()
