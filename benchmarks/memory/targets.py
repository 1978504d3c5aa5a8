"""Puts the targets beside the measured figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.load.memory import MIB
from benchmarks.load.report import Row, at_least, at_most
from benchmarks.memory.cases import OFF

_OF_COMPRESSED, _PLUS_MIB = 2.0, 0.2
_OF_BASELINE = 0.10
_OF_OFF = 0.05

Figures = Mapping[str, float]


def of_burst(rows: Sequence[tuple[str, int, Figures]], jpeg_nbytes: float, clients: int) -> list[Row]:
    """``rows``: mmserve's, as (gate, tokens, figures), and the baseline's with references kept, gate "baseline"."""
    baseline = {tokens: each for gate, tokens, each in rows if gate == "baseline"}
    found: list[Row] = []
    for gate, tokens, each in rows:
        if gate == "baseline":
            continue
        setting = f"{gate}, {tokens} tokens"
        found.append(at_least("answered", setting, each["ok"], clients))
        limit = _OF_COMPRESSED * jpeg_nbytes / MIB + _PLUS_MIB
        found.append(at_most("waiting MiB a request", setting, each["waiting_mib_per_request"], limit))
        if tokens in baseline:
            share = each["growth_mib_per_request"] / baseline[tokens]["growth_mib_per_request"]
            found.append(at_most("growth / baseline's", setting, share, _OF_BASELINE))
        if "of_off" in each and gate != OFF:
            found.append(at_least("requests/s of off's", setting, each["of_off"], 1 - _OF_OFF))
    return found
