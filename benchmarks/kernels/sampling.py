"""What sampling a step costs: the kernels beside the reference in torch, and whether both choose the same tokens.

    python -m benchmarks.kernels.sampling [--rows 64] [--vocab 128000] [--json FILE]

Logits are random in three shapes: peaked as a language model's are (a few hundred likely tokens), normal with standard
deviation 1 (half of the vocabulary is likely) and flat (nearly equal). Medians of one call for all rows, in ms;
the reference runs on one thread, as in a rank with kernels.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.load.report import Row, table, write_json
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.sampling import Draw, TokenSampling, TorchSampling
from mmserve.model_backend.worker.sampling.counter_random import random_key

_WITHIN_S = 1.0
_PARAMETERS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "temperature 1": {},
    "temperature 0.7": {"temperature": 0.7},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50": {"top_k": 50},
    "top_k 50, top_p 0.9, min_p 0.05": {"top_k": 50, "top_p": 0.9, "min_p": 0.05},
    "min_p 0.05": {"min_p": 0.05},
    "temperature 0.7, top_p 0.95": {"temperature": 0.7, "top_p": 0.95},
}


def peaked(rows: int, vocab: int) -> torch.Tensor:
    """Log-probabilities that fall with the logarithm of a token's rank, in random order, with some noise."""
    generator = torch.Generator().manual_seed(0)
    by_rank = -1.5 * torch.arange(1, vocab + 1).float().log()
    order = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(rows)])
    return by_rank[order] + 0.3 * torch.randn(rows, vocab, generator=generator) + 20


def normal(rows: int, vocab: int) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(1))


def flat(rows: int, vocab: int) -> torch.Tensor:
    return 0.01 * normal(rows, vocab)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=128_000)
    parser.add_argument("--json", help="also write the rows here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    platform = platform_for("cpu", "float32")
    threads = len(os.sched_getaffinity(0))
    platform.set_threads(threads)
    torch.set_num_threads(1)
    print(f"{arguments.rows} rows of {arguments.vocab} logits, {threads} threads")
    rows = [
        _measure(shape(arguments.rows, arguments.vocab), shape.__name__, name, platform.sampling())
        for shape in (peaked, normal, flat)
        for name in _PARAMETERS
    ]
    print(table(rows))
    write_json(arguments.json, rows)


@torch.inference_mode()
def _measure(logits: torch.Tensor, shape: str, name: str, kernels: TokenSampling) -> Row:
    draws = [
        Draw(
            **({"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | _PARAMETERS[name]), key=random_key(2, row)
        )  # type: ignore[arg-type]
        for row in range(len(logits))
    ]
    reference = TorchSampling()
    equal = torch.equal(kernels.choose(logits, draws, may_ban=False), reference.choose(logits, draws, may_ban=False))
    return {
        "logits": shape,
        "parameters": name,
        "reference ms": _median_ms(lambda: reference.choose(logits, draws, may_ban=False)),
        "kernels ms": _median_ms(lambda: kernels.choose(logits, draws, may_ban=False)),
        "same tokens": "yes" if equal else "NO",
    }


def _median_ms(call: Callable[[], object]) -> float:
    times_s: list[float] = []
    while not times_s or sum(times_s) < _WITHIN_S:
        started_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - started_s)
    return statistics.median(times_s) * 1e3


if __name__ == "__main__":
    main()
