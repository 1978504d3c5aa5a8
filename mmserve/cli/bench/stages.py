"""Where the time of answers goes, as a server says it of each (``stream_options.include_timing`` of mmserve)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from mmserve.cli.bench.client import Record
from mmserve.httpserver.stage_times import STAGES

REST = "rest"
"""What no stage explains: the network, the client, steps of the server that it does not time."""


def stages_ms(records: Sequence[Record]) -> dict[str, float]:
    """Mean of each stage over the answers whose server gave stages, in the order of a request, and ``REST``; empty if
    none did. A stage that an answer did not pass counts as 0."""
    told = [_of_one(record) for record in records if record.stages_ms and not record.error]
    names = {name for one in told for name in one}
    # Stages that this version does not know follow those it does.
    order = [*(name for name in STAGES if name in names), *sorted(names.difference(STAGES, [REST])), REST]
    return {name: statistics.fmean(one.get(name, 0.0) for one in told) for name in order} if told else {}


def _of_one(record: Record) -> Mapping[str, float]:
    """Stages that follow one another. Pictures are read and hashed at once, so their sums may exceed the whole."""
    stages = dict(record.stages_ms)
    if "alloc" in stages:
        stages["alloc"] = max(0.0, stages["alloc"] - stages.get("write", 0.0))
    return {**stages, REST: max(0.0, 1e3 * record.end_s - sum(stages.values()))}
