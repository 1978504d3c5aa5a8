"""Memory under many clients with one large picture each, for every gate, beside the pickling baseline.

Each run has a fresh server, and each repeat runs all cases in random order. Figures are medians; a gate's rate is
divided by the rate without a gate in the same repeat. The baseline (benchmarks/memory/pickled) sends fp32 pixels to
its engine.

    python -m benchmarks.memory.mm_memory               # all gates and the baseline
    python -m benchmarks.memory.mm_memory --aborts 0.2  # a fifth of the clients disconnects: what is still held?
    python -m benchmarks.memory.mm_memory --minutes 10  # does memory stay constant?
    python -m benchmarks.memory.mm_memory --queued 64   # text beside a full queue of images
"""

from __future__ import annotations

import argparse
import random
import shlex
from collections.abc import Mapping, Sequence

from benchmarks.load import report
from benchmarks.load.memory import MIB
from benchmarks.load.server import serve
from benchmarks.memory import aborts, burst, cases, endurance, queued, targets
from benchmarks.memory.cases import Case
from benchmarks.memory.memory_guard import OutOfMemory
from benchmarks.memory.pictures import Pictures

Figures = dict[str, float]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aborts", type=float, metavar="SHARE", help="this share of the clients hangs up")
    parser.add_argument("--minutes", type=float, help="closed loop for so long")
    parser.add_argument("--queued", type=int, metavar="N", help="text beside so many image requests")
    parser.add_argument("--model", default="llava")
    parser.add_argument("--clients", type=int, default=128)
    parser.add_argument("--size", type=int, default=1536, help="pixels of a picture's side")
    parser.add_argument("--gates", type=_numbers, default=[0, 1, 2, 4, 8], help="0: off; comma separated")
    parser.add_argument("--tokens", type=_numbers, default=[1, 64], help="max_tokens; comma separated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--baseline-repeats", type=int, default=1, help="0: no baseline")
    parser.add_argument("--serve-args", default="", help="further flags for mmserve serve")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def compare(options: argparse.Namespace, pictures: Pictures) -> list[report.Row]:
    """Measure all gates and the baseline. Prints the targets, returns the rows."""
    gated = cases.of_mmserve(options.gates, options.tokens, ["--prefault", *shlex.split(options.serve_args)])
    baseline = []
    if options.baseline_repeats:
        serial_ms = cases.serial_ms(pictures)
        baseline = cases.of_baseline(options.tokens, serial_ms)
        print(
            f"baseline: {serial_ms:.0f} ms from socket to engine for one picture; its encoder takes 2 x or 0.5 x that"
        )
    done: dict[Case, list[Figures]] = {case: [] for case in gated + baseline}
    order = random.Random(options.seed)
    for repeat in range(max(options.repeats, options.baseline_repeats)):
        due = gated * (repeat < options.repeats) + baseline * (repeat < options.baseline_repeats)
        for case, figures in one_repeat(order.sample(due, len(due)), pictures, options).items():
            done[case].append(figures)
        print(f"{repeat + 1} of {options.repeats} repeats", flush=True)
    medians = {case: report.median_row(found) for case, found in done.items() if found}
    print_targets(medians, pictures, options.clients)
    return _rows(medians)


def one_repeat(due: Sequence[Case], pictures: Pictures, options: argparse.Namespace) -> dict[Case, Figures]:
    """Run each case once. Cases that ran out of memory are left out."""
    found: dict[Case, Figures] = {}
    for case in due:
        print(f"  {case.name}", flush=True)
        if figures := measure(case, pictures, options):
            found[case] = figures
    rate_off = {case.tokens: figures["requests_per_s"] for case, figures in found.items() if case.setting == cases.OFF}
    for case, figures in found.items():
        if not case.baseline and case.tokens in rate_off:
            figures["of_off"] = figures["requests_per_s"] / rate_off[case.tokens]
    return found


def measure(case: Case, pictures: Pictures, options: argparse.Namespace) -> Figures | None:
    """One run of one case; None if the machine's memory did not suffice."""
    clients = cases.clients_that_fit(options.clients) if case.baseline else options.clients
    if clients < options.clients:
        print(f"  {case.name}: {clients} clients, for memory")
    with cases.started(case, options.model) as target:
        burst.warm_up(target, pictures)
        try:
            figures = burst.measure(target, pictures.bodies(target.model, case.tokens, clients)).row()
        except OutOfMemory as error:
            print(f"  {case.name}: {error}")
            return None
        return figures if case.baseline else _with_waiting(figures | burst.own_figures(target), clients)


def _with_waiting(figures: Figures, clients: int) -> Figures:
    """Adds the memory of waiting requests: growth without ranks and encoder, plus compressed bytes in the arena."""
    waiting = figures["growth_mib"] - figures["ranks_mib"] - figures["encoder_mib"] + figures.get("arena_data_mib", 0.0)
    return figures | {"waiting_mib_per_request": waiting / clients}


def _rows(medians: Mapping[Case, Figures]) -> list[report.Row]:
    """One row per case. All have the columns of mmserve's rows, which have the most."""
    columns = max((list(figures) for figures in medians.values()), key=len)
    return [
        {"server": case.server, "setting": case.setting, "tokens": case.tokens}
        | {column: figures.get(column, "") for column in columns}
        for case, figures in medians.items()
    ]


def print_targets(medians: Mapping[Case, Figures], pictures: Pictures, clients: int) -> None:
    """Print the targets; the baseline is the one that keeps its references."""
    rows = [
        ("baseline" if case.baseline else case.setting, case.tokens, figures)
        for case, figures in medians.items()
        if not case.baseline or case.setting == "kept"
    ]
    print(f"\n{report.table(targets.of_burst(rows, pictures.jpeg_nbytes, clients))}")


def check_one(options: argparse.Namespace, pictures: Pictures) -> list[report.Row]:
    """Check aborts, endurance or a queue, on one server."""
    met: Sequence[report.Row] = ()
    with serve("--prefault", *shlex.split(options.serve_args), model=options.model) as target:
        burst.warm_up(target, pictures)
        if options.aborts:
            rows = aborts.check(target, pictures.bodies(target.model, 1), options.aborts, options.seed)
        elif options.minutes:
            rows, met = endurance.check(target, pictures, options.clients, options.minutes)
        else:
            rows, met = queued.check(target, pictures, options.queued)
    if met:
        print(f"\n{report.table(met)}")
    return rows


def main() -> None:
    options = arguments()
    pictures = Pictures(options.queued or options.clients, options.size, options.seed)
    one = options.aborts or options.minutes or options.queued
    rows = check_one(options, pictures) if one else compare(options, pictures)
    what = f"{options.queued or options.clients} clients, JPEGs of {options.size} x {options.size}"
    print(f"\n{report.machine()}; {what}, {pictures.jpeg_nbytes / MIB:.2f} MiB each\n\n{report.table(rows)}")
    report.write_json(options.json, rows)


if __name__ == "__main__":
    main()
