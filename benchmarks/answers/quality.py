"""Cost of quantization in perplexity and its gain in tokens/s, beside ``none``.

The engine runs in this process and reads a fixed text in windows, one token a step, as answers are written. Every
value of --quantization reads each window, alternating. Rates are of the median step, for one sequence and for
several, without HTTP and scheduling.

    python -m benchmarks.answers.quality --model DIR
    python -m benchmarks.answers.quality --model DIR --text FILE --tokens 4000 --window 1000 --json quality.json
    python -m benchmarks.answers.quality --model DIR --quantization int8 --tokens 200 --window 100 --sequences 4
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
from pathlib import Path
from typing import get_args

import tokenizers

from benchmarks.answers.engine import Engine, Read
from benchmarks.load import report
from mmserve.checkpoint.locate import locate
from mmserve.config.config import Config
from mmserve.config.fields import Quantization

PLAIN = "none"
LIMITS = {"int8": (1.01, 1.3), "int4": (1.05, 1.7)}
"""Quantization -> perplexity at most, tokens/s of one sequence at least, over those of ``none``."""
TEXT = Path(__file__).parent / "harbour.txt"
"""Never edited, so that perplexities can be compared over time."""
_RATE_TOKENS = 48
"""Number of steps; the rate of several sequences is from their median."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llava", help="packaged name or checkpoint directory")
    parser.add_argument("--text", type=Path, default=TEXT, help=f"what is read [{TEXT.name}]")
    parser.add_argument("--tokens", type=int, default=1500, help="of the text, from its beginning")
    parser.add_argument("--window", type=int, default=500, help="tokens read in one piece")
    parser.add_argument("--sequences", type=int, default=16, help="side by side, for the second rate")
    parser.add_argument(
        "--quantization",
        action="append",
        choices=get_args(Quantization),
        help="beside none; repeatable; default: a CPU's",
    )
    parser.add_argument("--dtype", default="auto", help="of none")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def main() -> None:
    """Load an engine for each quantization, read the text, print the table."""
    options = arguments()
    text = options.text.read_text()
    tokenizer = tokenizers.Tokenizer.from_file(str(locate(options.model) / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids[: options.tokens]
    windows = [ids[at : at + options.window] for at in range(0, len(ids), options.window)]
    chosen = [name for name in get_args(Quantization) if name in {PLAIN, *(options.quantization or LIMITS)}]
    engines = {name: _engine(name, options) for name in chosen}
    rows = measure(engines, [window for window in windows if len(window) > 1], options.sequences)
    limits = check_limits(rows)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    print(f"\n{report.machine()}; {options.text.name} ({digest}), {len(ids)} tokens in windows of {options.window}")
    for table in filter(None, (rows, limits)):
        print(f"\n{report.table(table)}")
    report.write_json(options.json, [*rows, *limits])


def _engine(quantization: str, options: argparse.Namespace) -> Engine:
    print(f"{quantization}: loading", flush=True)
    return Engine(
        Config(
            model=options.model,
            quantization=quantization,  # type: ignore[arg-type]
            dtype=options.dtype if quantization == PLAIN else "auto",
            max_model_len=max(16, options.window),
            max_num_seqs=options.sequences,
        )
    )


def measure(engines: dict[str, Engine], windows: list[list[int]], num_sequences: int) -> list[report.Row]:
    """A row for each engine; they read each window alternately, so a drift of the machine affects them alike."""
    alone: dict[str, list[Read]] = {name: [] for name in engines}
    together: dict[str, list[Read]] = {name: [] for name in engines}
    for number, window in enumerate(windows, 1):
        for name, engine in engines.items():
            alone[name].append(engine.read([window]))
            together[name].append(engine.read([window[: _RATE_TOKENS + 1]] * num_sequences))
        print(f"window {number} of {len(windows)}", flush=True)
    rows = [_row(name, engines[name].dtype, alone[name], together[name], num_sequences) for name in engines]
    return [row | _over(row, rows[0]) for row in rows]


def _row(name: str, dtype: str, alone: list[Read], together: list[Read], num_sequences: int) -> report.Row:
    nll = [each for read in alone for each in read.nll]
    return {
        "quantization": name,
        "computed in": dtype,
        "perplexity": math.exp(statistics.fmean(nll)),
        "tokens_per_s": 1 / statistics.median(read.step_s for read in alone),
        f"tokens_per_s_{num_sequences}": num_sequences / statistics.median(read.step_s for read in together),
    }


def _over(row: report.Row, plain: report.Row) -> report.Row:
    """Each figure divided by that of ``none``."""
    return {f"{name} / none": value / plain[name] for name, value in row.items() if isinstance(value, float)}  # type: ignore[operator]


def check_limits(rows: list[report.Row]) -> list[report.Row]:
    """Ratios beside their limits. Several sequences must not be slower than with ``none``."""
    found = []
    for row in rows:
        name = str(row["quantization"])
        if name in LIMITS:
            perplexity, rate, batch_rate = (float(str(row[figure])) for figure in row if figure.endswith("/ none"))
            found += [
                report.at_most("perplexity / none", name, perplexity, LIMITS[name][0]),
                report.at_least("tokens/s, one sequence / none", name, rate, LIMITS[name][1]),
                report.at_least("tokens/s, several / none", name, batch_rate, 1.0),
            ]
    return found


if __name__ == "__main__":
    main()
