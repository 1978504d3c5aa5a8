"""A drill against the packaged model: faults on every process under 64 streams, with known right answers.

    python -m benchmarks.chaos --seconds 900

Starts a server of its own with two HTTP workers and two ranks, so that each kind of process is lost alone. Exits with
1 if an answer was wrong or lost, if something was not given back, or, in a drill of five minutes and more, if the
memory of all processes has grown by more than 3 %.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.load.server import serve
from mmserve.cli.chaos.drill import Plan, Result, run
from mmserve.cli.chaos.questions import Question, default_questions, with_known_answers
from mmserve.cli.chaos.report import render
from mmserve.cli.chaos.schedule import FAULTS, chosen
from training.sample import samples

MAX_GROWTH = 0.03
GROWTH_AFTER_S = 300.0
"""In a shorter drill, a process that was restarted last is still smaller or larger than it will be."""
LONG_STOPS_FROM_S = 300.0
KINDS = ("colour", "word", "where")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    flags = ["--dtype", "float32", "--http-workers", "2", "--kv-cache-gb", "0.5", "--mm-cache-gb", "0.25"]
    with serve(*flags, "--prefault", "--fault-injection", *arguments.serve_args.split()) as target:
        plan = Plan(arguments.seconds, arguments.clients, arguments.seed, _faults(arguments))
        result = run(target.url, plan, questions(arguments.questions, arguments.seed), _say)
    print(render(result))
    grown = arguments.seconds >= GROWTH_AFTER_S and grown_too_much(result)
    if grown:
        print(f"FAILED: the memory has grown by more than {MAX_GROWTH:.0%}")
    return 0 if result.passed and not grown else 1


def questions(count: int, seed: int) -> list[Question]:
    """Half long streams of any text, half questions whose right answer is known."""
    known = [(sample.messages, sample.answer) for sample in samples(count // 2, 770_000 + seed, kinds=KINDS)]
    return default_questions(count - len(known), pictures=True, seed=seed) + with_known_answers(known)


def grown_too_much(result: Result) -> bool:
    return result.pss_after > (1 + MAX_GROWTH) * result.pss_before


def _faults(arguments: argparse.Namespace) -> tuple[str, ...]:
    """All by default; in a short drill all but the long stops, which would take most of its time."""
    names = chosen(arguments.faults)
    too_long = arguments.faults is None and arguments.seconds < LONG_STOPS_FROM_S
    return tuple(name for name in names if name != "long-stop" or not too_long)


def _say(text: str) -> None:
    print(text, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", metavar="A,B,...", help=f"only these of {', '.join(FAULTS)}")
    parser.add_argument("--serve-args", default="--tp 2", help="more options of the server (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
