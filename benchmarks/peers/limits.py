"""Ratios of our figures to the peers', and the targets for them.

A peer's best mode counts for throughput, and the mode with the lowest time for times, whichever it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.load.report import Row, at_least, at_most
from benchmarks.peers.servers import MODES, OURS

SHARE = "of_limit"
"""The least time of a load divided by the time that it took."""
_MIXED = "W6"
_FIGURES = ("tokens_per_s", "requests_per_s", "pictures_per_s", "ttft_p50_ms", "itl_p50_ms", "start_s", "pss_mib")
THROUGHPUT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("W1", "W2", "W3", "W7", "W8"), ("tokens_per_s",)),
    **dict.fromkeys(("W4", "W5"), ("requests_per_s",)),
    _MIXED: ("tokens_per_s", "pictures_per_s"),
}
"""Load -> its figures that are to be higher than the peers'."""
_TIMES = {"vllm": 1.6, "llama.cpp": 1.2, "openvino": 1.2}
"""Peer -> least ratio of throughput."""
_SHARE_OF_LIMIT = 0.75
"""Of the least time that the load can take: more is not asked of a ratio to vLLM's throughput."""
_AT_MOST_OF_VLLM = {load: {"ttft_p50_ms": 1.0} for load in THROUGHPUT}
_AT_MOST_OF_VLLM["W1"] |= {"start_s": 0.2, "pss_mib": 0.7}
"""Load -> figure -> largest ratio to vLLM's lowest."""
_ITL_BESIDE_PICTURES = 1.3


def ratios(rows: Sequence[Row]) -> list[Row]:
    """Our figures divided by those of each server, for every load that both ran; nan if one was not measured."""
    ours = {row["load"]: row for row in rows if row["server"] == OURS}
    return [
        {"load": row["load"], "ours over": row["server"]}
        | {figure: _ratio(ours[row["load"]], row, figure) for figure in _FIGURES}
        for row in rows
        if row["server"] != OURS and row["load"] in ours
    ]


def check_limits(rows: Sequence[Row], mixed: Sequence[Row]) -> list[Row]:
    """Every ratio that has a target, with the target. ``rows``: of the loads; ``mixed``: of W6."""
    every, found = [*rows, *mixed], list[Row]()
    for load in THROUGHPUT:
        of_load = {row["server"]: row for row in every if row["load"] == load}
        if ours := of_load.pop(OURS, None):
            for peer, modes in MODES.items():
                if theirs := [of_load[mode] for mode in modes if mode in of_load]:
                    found += _of_peer(ours, peer, theirs)
    return found + [
        at_most("text itl_p50_ms over its own alone", _MIXED, _number(row, "itl_over_alone"), _ITL_BESIDE_PICTURES)
        for row in mixed
        if row["server"] == OURS
    ]


def verdicts(rows: Sequence[Row], mixed: Sequence[Row]) -> list[Row]:
    """For each load with targets: our figures, their share of the load's limit, and which targets are missed."""
    limits, found = check_limits(rows, mixed), list[Row]()
    for ours in (row for row in [*rows, *mixed] if row["server"] == OURS):
        if targets := [row for row in limits if row["setting"] == ours["load"]]:
            missed = [str(row["figure"]) for row in targets if row["met"] == "no"]
            figures = (f"{_number(ours, figure):.3g} {figure}" for figure in THROUGHPUT[str(ours["load"])])
            found.append(
                {
                    "load": ours["load"],
                    OURS: ", ".join(figures),
                    SHARE: _number(ours, SHARE),
                    "verdict": "missed: " + "; ".join(missed) if missed else f"all {len(targets)} met",
                }
            )
    return found


def _of_peer(ours: Row, peer: str, theirs: Sequence[Row]) -> Iterator[Row]:
    load = str(ours["load"])
    for figure in THROUGHPUT[load]:
        best = max(theirs, key=lambda row: _or(_number(row, figure), -math.inf))
        ratio = _ratio(ours, best, figure)
        target = min(_TIMES[peer], _within_reach(ours, ratio)) if peer == "vllm" else _TIMES[peer]
        yield at_least(_over(figure, best), load, ratio, target)
    for figure, target in _AT_MOST_OF_VLLM[load].items() if peer == "vllm" else ():
        best = min(theirs, key=lambda row: _or(_number(row, figure), math.inf))
        yield at_most(_over(figure, best), load, _ratio(ours, best, figure), target)


def _over(figure: str, row: Row) -> str:
    return f"{figure} over {row['server']}'s"


def _within_reach(ours: Row, ratio: float) -> float:
    """What the ratio would be at 75 % of the load's own limit; infinite if that is unknown."""
    share = _number(ours, SHARE)
    return ratio / share * _SHARE_OF_LIMIT if share > 0 else math.inf


def _ratio(ours: Row, theirs: Row, figure: str) -> float:
    return _number(ours, figure) / (_number(theirs, figure) or math.nan)


def _or(value: float, instead: float) -> float:
    return instead if math.isnan(value) else value


def _number(row: Row, figure: str) -> float:
    value = row.get(figure, math.nan)
    assert isinstance(value, float | int)
    return float(value)
