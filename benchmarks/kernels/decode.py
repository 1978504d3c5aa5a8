"""A decode step of one sequence or of several, as a share of the rate at which this machine reads memory.

    python -m benchmarks.kernels.decode --model DIR [--sequences 1] [--context 128] [--quantization int8]

The engine runs in this process and repeats one step: embedding, layers, output head and the choice of the tokens, with
what Python does around the kernels. The step's batch is made beforehand, as a rank makes the next one while the router
plans. Before and after each step the same threads read as many bytes as the step reads: the matrices, and the keys and
values of its sequences. Some machines read at a rate that changes within seconds, so a round counts only if its two
reads differ by less than a tenth, and the rounds are grouped by their rate.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import get_args

from benchmarks.answers.engine import Engine
from benchmarks.kernels.machine_rates import reading
from benchmarks.load import report
from mmserve.config.config import Config
from mmserve.config.fields import Quantization

_CLOSE = 0.1
"""Two reads agree if they differ by less than this part of the slower one."""
_GROUP = 10e9
"""Bytes a second between the rates of two groups of rounds."""


@dataclass(frozen=True)
class Round:
    step_s: float
    reads_s: tuple[float, float]

    @property
    def agrees(self) -> bool:
        return max(self.reads_s) / min(self.reads_s) < 1 + _CLOSE

    @property
    def share(self) -> float:
        """Of the read rate that the step reaches."""
        return sum(self.reads_s) / 2 / self.step_s

    def rate(self, nbytes: int) -> float:
        """Bytes a second that the two reads took."""
        return 2 * nbytes / sum(self.reads_s)


def main() -> None:
    """Measure, print a table with a row for each group of rounds."""
    options = arguments()
    engine = Engine(
        Config(
            model=options.model,
            quantization=options.quantization,
            dtype=options.dtype,
            max_model_len=options.context + 1,
            max_num_seqs=options.sequences,
        )
    )
    cache_nbytes = options.sequences * options.context * engine.token_cache_nbytes
    nbytes = engine.matrices_nbytes + cache_nbytes
    step = engine.repeated([[1 + at % 100 for at in range(options.context + 1)]] * options.sequences)
    rounds = measure(step, reading(nbytes), options.rounds)
    rows = grouped(rounds, nbytes)
    print(
        f"\n{report.machine()}; {options.sequences} x {options.context} tokens, computed in {engine.dtype}, "
        f"{(nbytes - cache_nbytes) / 1e6:.1f} MB of matrices and {cache_nbytes / 1e6:.1f} of keys and values"
        f"\n\n{report.table(rows)}"
    )
    report.write_json(options.json, rows)


def arguments() -> argparse.Namespace:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llava", help="packaged name or checkpoint directory [%(default)s]")
    parser.add_argument("--sequences", type=int, default=1, help="in the step [%(default)s]")
    parser.add_argument("--context", type=int, default=128, help="tokens of each [%(default)s]")
    parser.add_argument("--quantization", default="none", choices=get_args(Quantization))
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def measure(step: Callable[[], None], read: Callable[[], None], count: int) -> list[Round]:
    """Rounds of a read, a step and a read, after three that are not kept."""
    rounds = []
    for _ in range(count + 3):
        before_s, step_s, after_s = (_seconds(run) for run in (read, step, read))
        rounds.append(Round(step_s, (before_s, after_s)))
    return rounds[3:]


def _seconds(run: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    run()
    return time.perf_counter() - started_s


def grouped(rounds: Sequence[Round], nbytes: int) -> list[report.Row]:
    """A row for each rate of the rounds whose reads agree, to the nearest 10 GB/s, the slowest first."""
    groups: dict[int, list[Round]] = {}
    for each in rounds:
        if each.agrees:
            groups.setdefault(round(each.rate(nbytes) / _GROUP), []).append(each)
    return [
        {
            "reads GB/s": median(each.rate(nbytes) for each in group) / 1e9,
            "rounds": len(group),
            "step ms": 1e3 * median(each.step_s for each in group),
            "share of the read rate": median(each.share for each in group),
        }
        for _, group in sorted(groups.items())
    ]


if __name__ == "__main__":
    main()
