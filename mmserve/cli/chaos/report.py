"""The result of a drill as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from mmserve.cli.chaos.drill import FaultRecord, Result
from mmserve.cli.chaos.resumption import seconds_to_resume

_SHOWN = 10


def render(result: Result) -> str:
    """A table of faults, counts of answers, what is left over, and the verdict in the last line."""
    return "\n".join([*_fault_lines(result.faults), "", *_answer_lines(result), *_leftover_lines(result)])


def _fault_lines(records: list[FaultRecord]) -> Iterator[str]:
    yield f"{'process':<20} {'fault':<14} {'times':>5} {'streams':>8} {'recovery, median':>17} {'longest':>9}"
    grouped: defaultdict[tuple[str, str], list[FaultRecord]] = defaultdict(list)
    for record in records:
        grouped[record.fault.title, record.fault.name].append(record)
    for (title, name), group in sorted(grouped.items()):
        times = [record.recovered_s for record in group if record.recovered_s is not None]
        recovery = f"{median(times):>15.1f} s {max(times):>7.1f} s" if len(times) == len(group) else "never"
        live = median(record.num_live for record in group)
        unmet = sum(not record.met for record in group)
        note = f"  ({unmet} without work to meet it in)" if unmet else ""
        yield f"{title:<20} {name:<14} {len(group):>5} {live:>8.0f} {recovery}{note}"


def _answer_lines(result: Result) -> Iterator[str]:
    refused = sum(outcome.num_refusals for outcome in result.outcomes)
    pauses = [pause for outcome in result.outcomes for pause in outcome.pauses]
    longest = max((pause.seconds for pause in pauses), default=0.0)
    yield f"answers: {result.count('right')} right, {result.count('wrong')} wrong, {result.count('failed')} failed"
    yield f"connections broken: {result.count('broken')} (those of a killed or frozen HTTP worker are expected)"
    yield f"refusals that a client waited out: {refused}; longest pause inside a stream: {longest:.1f} s"
    if waits := seconds_to_resume(pauses, result.engine_ready_s):
        yield (
            f"streams resumed by a restarted engine: {len(waits)}; from its being ready to their next token: "
            f"{median(waits):.2f} s p50, {waits[int(0.9 * (len(waits) - 1))]:.2f} s p90, {waits[-1]:.2f} s max"
        )
    for outcome in result.unexplained[:_SHOWN]:
        yield f"  question {outcome.question} {outcome.verdict}: {outcome.detail[:300]}"


def _leftover_lines(result: Result) -> Iterator[str]:
    growth = result.pss_after / result.pss_before - 1 if result.pss_before else 0.0
    yield f"memory of all processes: {result.pss_before >> 20} MiB before, {result.pss_after >> 20} MiB after"
    yield f"change: {growth:+.1%}"
    for name, value in result.left_over.items():
        yield f"  not 0 afterwards: {name} = {value:g}"
    yield "passed" if result.passed else "FAILED"
